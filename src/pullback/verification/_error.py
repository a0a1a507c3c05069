r"""How far a kernel may be from the truth: as far as its reference is, and as rounding is.

Let :math:`t` be the reference in float64 on the very numbers that the kernel is given, :math:`r`
the reference in the kernel's dtype, with unit :math:`\epsilon`, and :math:`K` the number of entries
that one entry is summed of. Rounding every input by :math:`\epsilon` moves :math:`t` by
:math:`\Delta`, entry by entry: no algorithm can promise less. Adding :math:`K` terms one after
the other in the kernel's dtype multiplies that by about :math:`\sqrt K` (Higham, *Accuracy and
Stability of Numerical Algorithms*, 2002, section 4.2: the bound is :math:`K\epsilon`, and
:math:`\sqrt K\epsilon` where errors are independent). So an entry may be off by

.. math:: F \max(\max_j |r_j - t_j|,\; \sqrt K (\epsilon |t| + \Delta))

with one factor :math:`F` for all that is compared. Nothing in it is chosen for a kernel. In float64
no finer truth is at hand: there :math:`r_j - t_j` is the reference's error in float32, at the same
numbers rounded, in proportion to the unit. A gradient may vanish by cancellation at special
arguments (of a softmax of one entry): there :math:`|t|` is the largest one of the example, or of
the cotangents where nothing of the gradient is left.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from pullback.conformance import Arguments
from pullback.report import Verdict
from pullback.verification._answers import Answer, Placing, Runner, outputs_of

__all__ = ["FACTOR", "Judge", "Result", "dtype_of"]

FACTOR = 8.0
_SAMPLES = 2
_STEP, _SLACK = 1e-5, 0.01
_SIDED = 32  # entries of which the sides are looked at
_LEAST, _COTANGENT = 1e-300, 4.0  # few standard normal numbers are larger
_AROUND = 0.05  # of the typical movement: an entry that did not move by chance


@dataclass(frozen=True)
class Result:
    """What a comparison, or a test of a promise, says."""

    verdict: Verdict  # skipped where the reference refuses the arguments, crashes where the kernel
    detail: str = ""
    expected: str = ""  # the number, dtype or shape
    got: str = ""
    kernel: float = 0.0  # its largest error, in units in the last place
    reference: float = 0.0  # that of the reference in the kernel's dtype
    history: bool = True  # whether the kernel can be differentiated
    wrong: Sequence[int] = ()  # some of the entries that are wrong, in the flat tensor

    @property
    def fault(self) -> str:
        """What is wrong, or an empty text."""
        return self.detail if self.verdict is Verdict.BROKEN else ""


@dataclass(kw_only=True)
class Judge(Runner):
    """Compares a kernel with its reference at any arguments."""

    given: Arguments  # the example
    _lengths: dict[tuple[torch.Size, ...], int] = field(default_factory=dict, init=False)

    def truth(self, arguments: Arguments) -> Answer:
        """The reference in float64, on the same numbers."""
        return self.refer(arguments.cast(torch.float64), torch.float64)

    def answer(self, arguments: Arguments, place: Placing = torch.clone) -> Answer:
        """What the kernel answers."""
        return self.run(self.kernel.of(dtype_of(arguments)), arguments, place)

    def compare(self, arguments: Arguments, place: Placing = torch.clone) -> Result:
        """Compare at arguments."""
        truth = self.truth(arguments)
        if not truth.fault:
            poison(truth, dtype_of(arguments))
        got = Answer() if truth.fault else self.answer(arguments, place)
        return self.judge(arguments, got, truth)

    def judge(self, arguments: Arguments, got: Answer, truth: Answer | None = None) -> Result:
        """Compare what a kernel gave for arguments."""
        truth = self.truth(arguments) if truth is None else truth
        dtype = dtype_of(arguments)
        own = self.refer(arguments, dtype)
        if own.fault or truth.fault:
            why = f"the reference refuses them ({truth.fault or own.fault})"
            return Result(Verdict.SKIPPED, why)
        if got.fault:
            return Result(Verdict.CRASHES, got.fault)
        wrong = _kind(got, own)
        if wrong is not None:
            return wrong
        errors = self._own_errors(arguments, dtype, own, truth)
        moved = [self._moved(arguments, number, dtype) for number in range(_SAMPLES)]
        length = self._length(arguments)
        kernel = reference = 0.0
        points = dict(enumerate(arguments.points(), len(truth.outputs)))
        # Shorter where the kernel gives no gradients, which is said elsewhere.
        answers = zip(truth.named(), got.named(), own.named(), strict=False)
        for number, ((name, true), (_, found), (_, plain)) in enumerate(answers):
            entries = _compare_entries(
                name, true, found, plain, own_error=errors[number],
                moved=[list(answer.named())[number][1] for answer in moved if not answer.fault],
                dtype=dtype, length=length, typical=self._typical.get(number, 0.0),
                told=self._is_told and number < len(truth.outputs), point=points.get(number),
            )  # fmt: skip
            gradient = number - len(truth.outputs)
            if entries.fault and not self._are_of_sides(arguments, gradient, found, entries.wrong):
                return entries
            kernel, reference = max(kernel, entries.kernel), max(reference, entries.reference)
        numbers = {"kernel": kernel, "reference": reference}
        return Result(Verdict.HOLDS, **numbers, history=got.history)

    @cached_property
    def _is_told(self) -> bool:
        """Whether the example asks what becomes of what is not a number."""
        return any(bool(value.isnan().any()) for value in self.given.values)

    @cached_property
    def _typical(self) -> dict[int, float]:
        """The largest entry of each gradient at the example; 0 for an output."""
        answer = self.truth(self.given)
        sizes = [float(g.abs().max()) + _LEAST if g.numel() else 0.0 for g in answer.gradients]
        return dict(enumerate(sizes, len(answer.outputs)))

    def _own_errors(
        self, arguments: Arguments, dtype: torch.dtype, own: Answer, truth: Answer
    ) -> list[torch.Tensor]:
        """How far the reference is from the truth in a dtype, tensor by tensor."""
        scale = 1.0
        if dtype == torch.float64:
            coarse = arguments.cast(torch.float32)
            own = self.refer(coarse, torch.float32)
            truth = self.truth(coarse)
            scale = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
        pairs = zip(own.named(), truth.named(), strict=False)
        found = [(one.to(true.dtype) - true).abs() * scale for (_, one), (_, true) in pairs]
        return found + [torch.zeros((), device="cpu")] * (len(list(truth.named())) - len(found))

    def _are_of_sides(
        self, arguments: Arguments, number: int, found: torch.Tensor, wrong: Sequence[int]
    ) -> bool:
        """Whether the reference has a kink at some entries, and a gradient lies between its sides.

        The difference quotients on both sides of half the step are half as far apart where there
        is a second derivative, and as far as before at a kink.
        """
        if number < 0:  # it is an output
            return False
        wide = arguments.cast(torch.float64)
        silent, points = self.silent(), wide.points()

        def weighed(entry: int, step: float) -> list[torch.Tensor]:
            moved = points[number].clone()
            moved.view(-1)[entry] += step
            changed = [moved if k == number else point for k, point in enumerate(points)]
            made = silent.refer(wide.with_points(changed), torch.float64).outputs
            roots = [out for out in made if out.is_floating_point()]
            return [self.weights(root, k) * root for k, root in enumerate(roots)]

        given = weighed(0, 0.0)

        def sides(entry: int, step: float) -> tuple[float, float]:
            """What each output may add, from either of its sides: the least and the most."""
            low = high = 0.0
            answers = weighed(entry, -step), given, weighed(entry, step)
            for before, here, after in zip(*answers, strict=True):
                left, right = (here - before) / step, (after - here) / step
                low += float(torch.minimum(left, right).sum())
                high += float(torch.maximum(left, right).sum())
            return low, high

        for entry in wrong:
            value = float(found.flatten()[entry].real)
            far, near = sides(entry, _STEP), sides(entry, _STEP / 2)
            gap, slack = near[1] - near[0], _SLACK * (abs(near[0]) + abs(near[1]))
            is_kink = gap > max(0.75 * (far[1] - far[0]), slack)
            if not (is_kink and near[0] - slack <= value <= near[1] + slack):
                return False
        return True

    def _moved(self, arguments: Arguments, number: int, dtype: torch.dtype) -> Answer:
        """The truth where every number is off by as much as its rounding."""
        drawn = torch.Generator().manual_seed(1000 + number)
        eps = torch.finfo(dtype).eps

        def move(value: torch.Tensor) -> torch.Tensor:
            if not value.is_floating_point():
                return value
            signs = torch.rand(value.shape, generator=drawn, dtype=value.dtype, device="cpu") - 0.5
            return value + 2 * eps * signs.to(value.device) * value

        wide = arguments.cast(torch.float64)
        moved = wide.with_values([move(value) for value in wide.values])
        return self.refer(moved, torch.float64)

    def _length(self, arguments: Arguments) -> int:
        """How many entries one entry of an output, or of a gradient, is summed of."""
        shapes = tuple(value.shape for value in arguments.values)
        if shapes in self._lengths:
            return self._lengths[shapes]
        wide, silent = arguments.cast(torch.float64), self.silent()
        function = self.reference.of(torch.float64)
        points = [value.clone().requires_grad_() for value in wide.points()]
        tensors = wide.with_points(points).values
        outputs = [out for out in outputs_of(function, wide, tensors) if out.requires_grad]
        longest = 1
        for output in outputs[:1]:
            if output.numel():
                middle = output.flatten()[output.numel() // 2]
                found = torch.autograd.grad(middle, points, allow_unused=True)
                longest = max(longest, *(int((g != 0).sum()) for g in found if g is not None))
        base = silent.run(function, wide)
        for k in wide.differentiable:
            value = wide.values[k].clone()
            if value.numel():
                value.view(-1)[value.numel() // 2] += 0.125
            others = [value if j == k else v for j, v in enumerate(wide.values)]
            other = silent.run(function, wide.with_values(others))
            changed = sum(
                int((a != b).sum()) for a, b in zip(base.outputs, other.outputs, strict=False)
            )
            longest = max(longest, changed)
        self._lengths[shapes] = longest
        return longest


def _compare_entries(
    name: str, true: torch.Tensor, got: torch.Tensor, own: torch.Tensor, *,
    own_error: torch.Tensor, moved: Sequence[torch.Tensor], dtype: torch.dtype, length: int,
    typical: float, told: bool, point: torch.Tensor | None,
) -> Result:  # fmt: skip
    """One tensor of a kernel beside the truth, entry by entry."""
    if not true.numel():
        return Result(Verdict.HOLDS)
    if not (true.is_floating_point() or true.is_complex()):
        unequal = (got.to(true.dtype) != true).double()
        nothing = torch.zeros_like(unequal)
        return _worst(name, true, got, excess=2 * unequal, error=unequal, own=nothing)
    limits = torch.finfo(dtype)
    got, own = got.to(true.dtype), own.to(true.dtype)
    judged = true.isfinite() & own.isfinite()  # an overflow of the reference judges nobody
    if point is not None:  # where the input is not a number there is no derivative
        judged = judged & ~point.isnan()
    error = torch.where(judged, (got - true).abs(), 0.0)
    hidden = true.isnan() & own.isnan() & ~got.isnan() & told
    error = torch.where(error.isnan() | hidden, math.inf, error)
    own_error = torch.where(judged & own_error.isfinite(), own_error, 0.0)
    delta = torch.zeros_like(error)
    for other in moved:
        delta = torch.maximum(delta, torch.where(judged, (other - true).abs(), 0.0))
    delta = torch.where(delta.isfinite(), delta, 0.0)
    delta = delta + _AROUND * delta.square().mean().sqrt()
    least = max(typical, _COTANGENT) if typical and not true.any() else typical
    size = true.abs().nan_to_num().clamp(min=least)
    rounding = math.sqrt(length) * (limits.eps * size + delta)
    allowed = FACTOR * torch.maximum(own_error.max(), rounding) + 4 * limits.tiny
    unit = limits.eps * true.abs().clamp(min=limits.tiny)
    unit = torch.where(unit.isfinite(), unit, 1.0)
    error, excess = error / unit, error / allowed
    return _worst(name, true, got, excess=excess, error=error, own=own_error / unit)


def _worst(
    name: str, true: torch.Tensor, got: torch.Tensor, *, excess: torch.Tensor, error: torch.Tensor,
    own: torch.Tensor,
) -> Result:  # fmt: skip
    """Where the error is larger than allowed, the entry where it is so most."""
    most = {"kernel": float(error.max()), "reference": float(own.max())}
    k = int(excess.argmax())
    if float(excess.flatten()[k]) <= 1:
        return Result(Verdict.HOLDS, **most)
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(k), true.shape))
    wrong = (excess.flatten() > 1).nonzero().flatten().tolist()
    step = len(wrong) // _SIDED + 1
    return Result(
        Verdict.BROKEN, f"{name} is wrong at {f'entry {index}' if index else 'its one entry'}: "
        f"off by {float(error.flatten()[k]):.3g} units in the last place, where the "
        f"reference itself is off by {float(own.flatten()[k]):.3g} there, and by "
        f"{most['reference']:.3g} at most",
        _number(true.flatten()[k]), _number(got.flatten()[k]), **most, wrong=[k, *wrong[::step]],
    )  # fmt: skip


def _kind(got: Answer, own: Answer) -> Result | None:
    """What tells the answers apart before any number: how many, of which shape and dtype."""
    if len(got.outputs) != len(own.outputs):
        counts = f"{len(own.outputs)} tensors", f"{len(got.outputs)} tensors"
        return Result(Verdict.BROKEN, "it returns another number of tensors", *counts)
    for (name, one), (_, other) in zip(got.named(), own.named(), strict=False):
        pairs = {"shape": (tuple(other.shape), tuple(one.shape)), "dtype": (other.dtype, one.dtype)}
        for what, (expected, found) in pairs.items():
            if expected != found:
                said = f"{name} has another {what}"
                return Result(Verdict.BROKEN, said, str(expected), str(found))
    return None


def poison(truth: Answer, dtype: torch.dtype) -> None:
    """Leave no answer in memory that is free: what reads it without writing finds no number."""
    blocks = [t.new_full(t.shape, math.nan, dtype=dtype) for _, t in truth.named() for _ in "ab"]
    del blocks


def dtype_of(arguments: Arguments) -> torch.dtype:
    """The coarsest floating dtype of the arguments."""
    found = [v.dtype for v in arguments.values if v.is_floating_point()]
    return max(found, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def _number(value: torch.Tensor) -> str:
    return f"{value.item():.8g}" if value.dtype != torch.bool else str(bool(value))
