r"""How far a kernel may be from the truth: as far as its reference is, and as rounding is.

Let :math:`t` be the reference in float64 on the very numbers that the kernel is given, :math:`r`
the reference in the kernel's dtype, with unit :math:`\epsilon`, and :math:`K` the number of entries
that one entry is summed of. Rounding every input by :math:`\epsilon` moves :math:`t` by
:math:`\Delta`, entry by entry: no algorithm can promise less. Adding :math:`K` terms one after
the other in the kernel's dtype multiplies that by about :math:`\sqrt K` (Higham, *Accuracy and
Stability of Numerical Algorithms*, 2002, section 4.2: the bound is :math:`K\epsilon`, and
:math:`\sqrt K\epsilon` where errors are independent). So an entry may be off by

.. math:: F \max(\max_j |r_j - t_j|,\; \sqrt K (\epsilon |t| + \Delta))

with one factor :math:`F` for all that is compared. Nothing in it is chosen for a kernel. The
root grows until :math:`F \sqrt K \epsilon` is an eighth, and no further: in bfloat16 a sum of 256
terms might be any number up to twice the truth else, zero included. In float64
no finer truth is at hand: there :math:`r_j - t_j` is the reference's error in float32, at the same
numbers rounded, in proportion to the unit. A gradient may vanish by cancellation at special
arguments (of a softmax of one entry): there :math:`|t|` is the largest one of the example, or of
the cotangents where nothing of the gradient is left.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import torch

from pullback.conformance import Arguments
from pullback.report import Verdict
from pullback.verification._answers import Answer, Placing, Runner, dtype_of
from pullback.verification._kinks import are_of_sides

__all__ = ["Judge", "Result", "difference_in_kind"]

FACTOR = 8.0
_MOST = 0.125  # of the number itself, that adding up many may add to the error
_SIDED = 32  # entries of which the sides are looked at
_COTANGENT = 4.0  # few standard normal numbers are larger
_AROUND = 0.05  # of the typical movement: an entry that did not move by chance
_SAMPLES = 2
_ROUNDINGS, _TIE = 32, 1e-4  # draws, and a part of rounding that decides at a tie alone
_LEAST = 1e-300


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


def compare_whole(name: str, true: torch.Tensor, got: torch.Tensor, free: torch.Tensor) -> Result:
    """Whole numbers and truth values: each is the reference's, but for those that are free."""
    wrong = ((got.to(true.dtype) != true) & ~free).flatten().nonzero().flatten().tolist()
    if not wrong:
        return Result(Verdict.HOLDS)
    k = wrong[0]
    others = f", and at {len(wrong) - 1} others" if wrong[1:] else ""
    counted = f"{name} is wrong at {_place(k, true.shape)}{others}"
    return Result(
        Verdict.BROKEN, counted, _number(true.flatten()[k]), _number(got.flatten()[k]), wrong=wrong
    )


def compare_entries(
    name: str, true: torch.Tensor, got: torch.Tensor, own: torch.Tensor, *,
    own_error: torch.Tensor, moved: Callable[[], Sequence[torch.Tensor]], dtype: torch.dtype,
    length: int, typical: float, told: bool, point: torch.Tensor | None,
) -> Result:  # fmt: skip
    """One tensor of a kernel beside the truth, entry by entry; what moves is asked for if need be.

    A kernel is as exact as its reference as a rule, and then what rounding does is nobody's matter.
    """
    # An output of another dtype than the inputs is rounded to it by whoever computes it.
    limits = max(map(torch.finfo, (dtype, own.dtype)), key=lambda found: found.eps)
    true, got, own, own_error = map(widened, (true, got, own, own_error))
    judged = true.isfinite() & own.isfinite()  # an overflow of the reference judges nobody
    if point is not None:  # where the input is not a number there is no derivative
        judged = judged & ~point.isnan()
    error = torch.where(judged, (got - true).abs(), 0.0)
    error = torch.where(error.isnan(), math.inf, error)
    if told:
        infinite = true.isinf() & (own == true) & (got != true)
        hidden = infinite | (true.isnan() & own.isnan() & ~got.isnan())
        error = torch.where(hidden, math.inf, error)
    own_error = torch.where(judged & own_error.isfinite(), own_error, 0.0)
    allowed = FACTOR * own_error.max() + 4 * limits.tiny
    if bool(error.max() > allowed):
        least = max(typical, _COTANGENT) if typical and not true.any() else typical
        size = true.abs().nan_to_num().clamp(min=least)
        # In half precision the root alone would allow a long sum to be anything, zero included.
        summed = max(1.0, min(math.sqrt(length), _MOST / (FACTOR * limits.eps)))
        rounding = summed * (limits.eps * size + _movement(true, judged, moved()))
        allowed = torch.maximum(allowed, FACTOR * rounding + 4 * limits.tiny)
    unit = limits.eps * true.abs().clamp(min=limits.tiny)
    unit = torch.where(unit.isfinite(), unit, 1.0)
    return _worst(name, true, got, excess=error / allowed, error=error / unit, own=own_error / unit)


def _movement(
    true: torch.Tensor, judged: torch.Tensor, moved: Sequence[torch.Tensor]
) -> torch.Tensor:
    """How far each entry moves at the most."""
    delta = torch.zeros_like(true, dtype=torch.float64)
    for other in map(widened, moved):
        delta = torch.maximum(delta, torch.where(judged, (other - true).abs(), 0.0))
    delta = torch.where(delta.isfinite(), delta, 0.0)
    return delta + _AROUND * delta.square().mean().sqrt()


def widened(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def _worst(
    name: str, true: torch.Tensor, got: torch.Tensor, *, excess: torch.Tensor, error: torch.Tensor,
    own: torch.Tensor,
) -> Result:  # fmt: skip
    """Where the error is larger than allowed, the entry where it is so most."""
    most = {"kernel": float(error.max()), "reference": float(own.max())}
    k = int(excess.argmax())
    if float(excess.flatten()[k]) <= 1:
        return Result(Verdict.HOLDS, **most)
    expected, found = true.flatten()[k], got.flatten()[k]
    said = (
        f"off by {float(error.flatten()[k]):.3g} units in the last place, where the reference "
        f"itself is off by {float(own.flatten()[k]):.3g} there, and by {most['reference']:.3g} at "
        "most"
    )
    if not expected.isfinite():
        said = "it hides what is not finite"
    elif not found.isfinite():
        said = "it is not finite"
    elif not expected:
        said = f"off by {float(found.abs()):.3g} from zero"
    wrong = (excess.flatten() > 1).nonzero().flatten().tolist()
    step = len(wrong) // _SIDED + 1
    return Result(
        Verdict.BROKEN, f"{name} is wrong at {_place(k, true.shape)}: {said}", _number(expected),
        _number(found), **most, wrong=[k, *wrong[::step]],
    )  # fmt: skip


def _place(entry: int, shape: torch.Size) -> str:
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(entry), shape))
    return f"entry {index}" if index else "its one entry"


def _number(value: torch.Tensor) -> str:
    rounded = value.is_floating_point() or value.is_complex()
    return f"{value.item():.8g}" if rounded else str(value.item())


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
        return self.judge(arguments, got, truth, place)

    def judge(
        self, arguments: Arguments, got: Answer, truth: Answer | None = None,
        place: Placing = torch.clone,
    ) -> Result:  # fmt: skip
        """Compare what a kernel gave for arguments, whose tensors lay somewhere."""
        truth = self.truth(arguments) if truth is None else truth
        own = self.refer(arguments, dtype_of(arguments), place)
        if own.fault or truth.fault:
            why = f"the reference refuses them ({truth.fault or own.fault})"
            return Result(Verdict.SKIPPED, why)
        if got.fault:
            return Result(Verdict.CRASHES, got.fault, history=got.history)
        return difference_in_kind(got, own) or self._compare(arguments, got, truth, own)

    def _compare(self, arguments: Arguments, got: Answer, truth: Answer, own: Answer) -> Result:
        """Compare tensor by tensor what is of the same kinds."""
        dtype = dtype_of(arguments)
        errors = self._own_errors(arguments, dtype, own, truth)
        length = self._length(arguments)
        kernel = reference = 0.0
        points = dict(enumerate(arguments.points(), len(truth.outputs)))
        told = self._is_told or arguments is self.given

        @cache
        def moved() -> list[Answer]:
            answers = (self._moved(arguments, number, dtype) for number in range(_SAMPLES))
            return [answer for answer in answers if not answer.fault]

        # Shorter where the kernel gives no gradients, which is said elsewhere.
        answers = zip(truth.named(), got.named(), own.named(), strict=False)
        for number, ((name, true), (_, found), (_, plain)) in enumerate(answers):
            if not true.numel():
                continue
            if not (true.is_floating_point() or true.is_complex()):
                entries = self._compare_whole(arguments, number, truth, got, own)
            else:
                entries = compare_entries(
                    name, true, found, plain, own_error=errors[number],
                    moved=lambda k=number: [answer.every[k] for answer in moved()],
                    dtype=dtype, length=length, typical=self._typical.get(name, 0.0),
                    told=told and number < len(truth.outputs), point=points.get(number),
                )  # fmt: skip
            gradient = number - len(truth.outputs)
            if entries.fault and not are_of_sides(self, arguments, gradient, got, entries.wrong):
                return entries
            kernel, reference = max(kernel, entries.kernel), max(reference, entries.reference)
        numbers = {"kernel": kernel, "reference": reference}
        return Result(Verdict.HOLDS, **numbers, history=got.history)

    def judge_as(self, dtype: torch.dtype, arguments: Arguments, got: Answer) -> Result:
        """Compare what was given for arguments as though all were of a coarser dtype."""

        def rounded(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
            return tuple(t.to(dtype) if t.is_floating_point() else t for t in tensors)

        narrow = replace(got, outputs=rounded(got.outputs), gradients=rounded(got.gradients))
        return self.judge(arguments.cast(dtype), narrow)

    @cached_property
    def _is_told(self) -> bool:
        """Whether the example asks what becomes of what is not a number."""
        return any(bool(value.isnan().any()) for value in self.given.values)

    @cached_property
    def _typical(self) -> dict[str, float]:
        """The largest entry of each gradient at the example, by its name."""
        answer = self.truth(self.given)
        named = zip(answer.names[len(answer.outputs) :], answer.gradients, strict=True)
        return {name: float(g.abs().max()) + _LEAST if g.numel() else 0.0 for name, g in named}

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
        pairs = zip(own.every, truth.every, strict=False)
        found = [(widened(one) - widened(true)).abs() * scale for one, true in pairs]
        return found + [torch.zeros((), device="cpu")] * (len(truth.every) - len(found))

    def _compare_whole(
        self, arguments: Arguments, number: int, truth: Answer, got: Answer, own: Answer
    ) -> Result:
        """Whole numbers of an answer beside the truth; where rounding decides, either is right.

        At a tie of the very numbers that are given nothing is rounded: there it is the reference's,
        where that takes the least one always, or the largest, as `torch.argmax` does, or one that
        is neither of its two sides', as the sign of zero.
        """
        name, true = truth.names[number], truth.outputs[number]
        free = own.outputs[number] != true
        entries = compare_whole(name, true, got.outputs[number], free)
        if not entries.fault:
            return entries
        dtype, silent = dtype_of(arguments), self.silent()
        wide = FACTOR * math.sqrt(self._length(arguments))

        def others(times: float) -> torch.Tensor:
            draws = range(_ROUNDINGS)
            answers = [silent._moved(arguments, k, dtype, times, zeros=True) for k in draws]
            found = [answer.outputs[number] for answer in answers if not answer.fault]
            return torch.stack([true, *(found or [true])])

        ties, around = others(_TIE), others(wide)
        low, high, tied = ties[1:].amin(0), ties[1:].amax(0), (ties != true).any(0)
        two_sided = ((ties[1:] == low) | (ties[1:] == high)).all(0) & (true > low) & (true < high)
        is_rule = any(torch.equal(true, end) for end in (ties.amin(0), ties.amax(0)))
        free |= (around != true).any(0) & ~(tied & (two_sided | is_rule))
        return compare_whole(name, true, got.outputs[number], free)

    def _moved(
        self, arguments: Arguments, number: int, dtype: torch.dtype, times: float = 1.0, *,
        zeros: bool = False,
    ) -> Answer:  # fmt: skip
        """The truth where every number is off by as much as its rounding, or some times that.

        A zero is not rounded; where it is asked for, it is off by as much as other numbers are.
        """
        drawn = torch.Generator().manual_seed(1000 + number)
        eps = times * torch.finfo(dtype).eps

        def move(value: torch.Tensor) -> torch.Tensor:
            if not value.is_floating_point():
                return value
            signs = torch.rand(value.shape, generator=drawn, dtype=value.dtype, device="cpu") - 0.5
            size = value.abs()
            size = size.where(size > 0, size.nan_to_num().mean() or 1.0) if zeros else size
            return value + 2 * eps * signs.to(value.device) * size

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
        made = self.outputs(function, wide, tensors).values()
        longest = 1
        for output in [out for out in made if points and out.requires_grad and out.numel()][:1]:
            middle = torch.view_as_real(output) if output.is_complex() else output
            middle = middle.flatten()[middle.numel() // 2]
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


def difference_in_kind(got: Answer, own: Answer) -> Result | None:
    """What tells the answers apart before any number: how many, of which shape and dtype."""
    if len(got.outputs) != len(own.outputs):
        expected, found = (
            ", ".join(each.names[: len(each.outputs)]) or "none" for each in (own, got)
        )
        return Result(Verdict.BROKEN, "it returns another number of tensors", expected, found)
    if got.names[: len(got.outputs)] != own.names[: len(own.outputs)]:
        pairs = zip(own.names, got.names, strict=False)
        names = next((one, other) for one, other in pairs if one != other)
        return Result(Verdict.BROKEN, "it names what it returns otherwise", *names)
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
