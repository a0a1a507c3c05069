"""The gradient of <w, f> entry by entry, by finite differences, beside what backward returns.

A directional derivative tells that a backward is wrong. Which entries are, and how, is told by
moving one entry at a time; of a large input some entries, spread out and at both ends.
"""

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from pullback.conformance._arguments import Arguments, is_continuous
from pullback.conformance._derivative import aligned
from pullback.conformance._directions import scale
from pullback.conformance._edits import right_edit
from pullback.conformance._evidence import inner
from pullback.conformance._explain import Difference, explain
from pullback.conformance._held import context_tensors
from pullback.conformance._neglected import neglected
from pullback.conformance._nodes import custom_nodes
from pullback.conformance._operations import Backward
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._relations import EXACT
from pullback.conformance._shown import window
from pullback.conformance._structure import keep_step
from pullback.conformance._tree import walk
from pullback.report import Finding

__all__ = ["wrong_entries"]

_EVERY = 256
_SOME = 96
_ENDS = 24
_NEAR = 3
# Seconds of work that moving entries may take; the others are not moved then.
_SECONDS = 1.5
_STEP = {torch.float64: 2.0**-17, torch.float32: 2.0**-6}
_APART = {torch.float64: 1e-4, torch.float32: 3e-2}


def wrong_entries(probe: Probe, only: int | None, detail: str, hint: str) -> Finding | None:
    """Find an input whose gradient is wrong entry by entry, and say how.

    Arguments:
        probe: the subject, whose backward is known to be wrong.
        only: the position of the input, or ``None`` to look at each.
        detail: what was seen.
        hint: how to mend it, where backward returns a gradient.

    Returns:
        The finding for the first input that has wrong entries; ``None`` where no single entry can
        be moved, or none is wrong (the points tried by others are random, at a kink for example).
    """
    if probe.kin != "any":
        return None
    inputs = range(len(probe.inputs.differentiable)) if only is None else [only]
    until = time.process_time() + _SECONDS
    for number in (0, 2):
        points = probe.point(number)
        base = probe.output_values(points)
        at = _At(probe, points, probe.spread(base, "weights 0"), base, until)
        for k in inputs:
            found = _wrong(at, k)
            if found is not None:
                return _told(at, k, found, detail, hint)
    return None


class _Wrong(NamedTuple):
    """A gradient by finite differences (NaN where not moved), by backward, and how they differ."""

    expected: torch.Tensor
    got: torch.Tensor | None
    said: str


def _told(at: "_At", only: int, found: _Wrong, detail: str, hint: str) -> Finding:
    there = replace(at.probe, inputs=at.probe.inputs.with_points(at.points))
    got = torch.zeros_like(found.expected) if found.got is None else found.got
    steps = {k: _step(at.points[only], k, at.probe.rough) for k in window(found.expected, got)}
    if found.got is None:
        hint = "Return its gradient at its place: backward returns None there."
    return there.broken(
        detail, expected=found.expected, got=found.got, said=found.said,
        place=there.path(only), hint=hint, given={"w": at.weights},
        repro=[
            f"got = torch.autograd.grad(outs(), xs, w, allow_unused=True)[{only}]",
            f"x = xs[{only}]; steps = {steps}",
            "def moved(i, h):",
            "    with torch.no_grad():",
            "        x.view(-1)[i] += h",
            "        found = sum((a.conj() * y).sum().real.item() for a, y in zip(w, outs()))",
            "        x.view(-1)[i] -= h",
            "    return found",
            "print('finite differences', "
            "[(moved(i, h) - moved(i, -h)) / (2 * h) for i, h in steps.items()])"
            if not found.expected.is_complex()
            else "print('finite differences', [complex(*[(moved(i, d * h) - moved(i, -d * h)) "
            "/ (2 * h) for d in (1, 1j)]) for i, h in steps.items()])",
            "print('backward          ', got if got is None else "
            "[got.reshape(-1)[i].item() for i in steps])",
        ],
    )  # fmt: skip


@dataclass(frozen=True)
class _At:
    """<w, f> around one point.

    Arguments:
        probe: the subject.
        points: the differentiated inputs.
        weights: the cotangents.
        base: the outputs there.
        until: when time is over.
    """

    probe: Probe
    points: Tensors
    weights: Tensors
    base: Tensors
    until: float

    def change(self, only: int, step: torch.Tensor) -> Tensors | None:
        """How much each output changes with one input along a step, half of it to either side."""
        sides = []
        for sign in (1, -1):
            moved = [x.clone() for x in self.points]
            moved[only] = moved[only] + sign * step
            try:
                with torch.no_grad():
                    sides.append(aligned(self.probe.evaluate(moved), self.base))
            except Exception:  # refused there
                return None
        return [(up - down) / 2 for up, down in zip(*sides, strict=True)]

    def weighed(self, only: int, step: torch.Tensor) -> float | None:
        """The same, of <w, f>."""
        found = self.change(only, step)
        if found is None:
            return None
        return sum(inner(w, change) for w, change in zip(self.weights, found, strict=True))

    def slope(self, only: int, place: int) -> complex | float | None:
        """d<w, f> by one entry; of a complex entry as autograd has it."""
        point = self.points[only]
        size = _step(point, place, self.probe.rough)
        found = []
        for unit in (1.0, 1j) if point.is_complex() else (1.0,):
            step = torch.zeros_like(point).contiguous()
            step.view(-1)[place] = torch.tensor(size * unit, dtype=point.dtype)
            change = self.weighed(only, step)
            if change is None:
                return None
            found.append(change / size)
        return complex(*found) if len(found) == 2 else found[0]

    def gap(
        self, only: int, step: torch.Tensor, gradient: torch.Tensor, low: int, high: int
    ) -> float:
        """How far backward is off where one range of entries moves; 0 where f is refused."""
        moved = torch.zeros_like(step)
        moved[low:high] = step[low:high]
        change = self.weighed(only, self.size * moved.view(self.points[only].shape))
        return 0.0 if change is None else abs(change / self.size - inner(gradient, moved))

    @property
    def size(self) -> float:
        """How far what moves as a whole does so, as a part of a step."""
        return _STEP[torch.float32 if self.probe.rough else torch.float64]

    def gradient(self, only: int, places: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient of one input at some entries, as many as there is time for, and which."""
        found = torch.full_like(self.points[only], torch.nan).contiguous()
        known = torch.zeros(found.shape, dtype=torch.bool)
        for place in places:
            value = self.slope(only, place)
            if value is not None:
                found.view(-1)[place] = torch.as_tensor(value, dtype=found.dtype)
                known.view(-1)[place] = True
            if time.process_time() > self.until:
                break
        return found, known

    def pushed(self, only: int) -> torch.Tensor | None:
        """J w, where one output has the shape of the input."""
        point = self.points[only]
        if len(self.weights) != 1 or self.weights[0].shape != point.shape or point.is_complex():
            return None
        change = self.change(only, self.size * self.weights[0].to(point.dtype))
        return None if change is None else change[0] / self.size

    def with_constants(self) -> "_At":
        """The same, with every floating input as one that is differentiated."""
        given = self.probe.inputs.with_points(self.points)
        every = [k for k, value in enumerate(given.values) if is_continuous(value)]
        inputs = given.with_differentiable(every)
        return replace(self, probe=self.probe.at(inputs), points=inputs.points())

    def whole(self, only: int, weights: Tensors | None = None) -> torch.Tensor | None:
        """All entries of a gradient; ``None`` where one cannot be had, or time is over."""
        count = self.points[only].numel()
        if count > _EVERY or time.process_time() > self.until:
            return None
        there = self if weights is None else replace(self, weights=weights)
        found, known = there.gradient(only, range(count))
        return found if bool(known.all()) else None


def _wrong(at: _At, only: int) -> _Wrong | None:
    probe, points, point = at.probe, at.points, at.points[only]
    places = _places(point.numel())
    if not places or not _moves_alone(point, places[0]):
        return None
    lone = _lone_place(at, only)
    around = range(max(lone - _NEAR, 0), min(lone + _NEAR + 1, point.numel()))
    expected, known = at.gradient(only, [*around, *places])
    handed = [w.clone() for w in at.weights]
    got = probe.answers(probe.leaves(points), handed)[only]
    got = None if got is None else got.detach()
    answered = torch.zeros_like(point) if got is None else got
    if not known.any() or answered.shape != point.shape:
        return None
    tolerance = _APART[torch.float32 if probe.rough or probe.grain else torch.float64]
    gap = (answered.cpu() - expected.cpu())[known].abs()
    if not bool((~(gap <= tolerance * expected.cpu()[known].abs().max())).any()):
        return None
    shown = [k for k in window(expected, answered) if not known.view(-1)[k]]
    if shown:
        more, found = replace(at, until=math.inf).gradient(only, shown)
        expected, known = torch.where(found, more, expected), known | found
    difference, names = _difference(at, only, expected, got, known), probe.inputs.names()
    said = explain(difference, EXACT)
    if not said:
        at = replace(at, until=time.process_time() + _SECONDS)
        backward = Backward(probe, points, at.weights)
        mend = right_edit(backward, only, difference, at.until) or neglected(
            probe.inputs.with_points(points), names[only], partial(_is_of, at, only, answered)
        )
        said = f"{mend} {explain(difference)}".strip()
    return _Wrong(expected, got, said)


def _is_of(at: _At, only: int, gradient: torch.Tensor, inputs: Arguments) -> bool:
    """Whether a gradient is that of forward at other arguments, along two directions."""
    probe, points = at.probe.at(inputs), inputs.points()
    try:
        there = replace(at, probe=probe, points=points, base=probe.output_values(points))
        for label in ("one", "other"):
            step = probe.direction(label, only)[only]
            found = there.weighed(only, at.size * step)
            terms = (gradient.conj() * step).real.double()
            close = _APART[torch.float64] * float(terms.square().sum().sqrt())
            if found is None or not abs(found / at.size - float(terms.sum())) <= close:
                return False
    except Exception:  # outside of the domain of forward
        return False
    return True


def _lone_place(at: _At, only: int) -> int:
    """An entry of a large input that is wrong: the range that moves is halved, again and again."""
    low, high = 0, at.points[only].numel()
    if high <= _EVERY:
        return 0
    step = at.probe.direction("lone entry", only)[only].reshape(-1)
    gradient = at.probe.backward(at.points, at.weights)[only].reshape(-1)
    while high - low > 1 and time.process_time() < at.until:
        middle = (low + high) // 2
        left, right = (at.gap(only, step, gradient, *r) for r in ((low, middle), (middle, high)))
        low, high = (low, middle) if left >= right else (middle, high)
    return low


def _places(count: int) -> list[int]:
    """Every entry, or those at both ends and some between."""
    if count <= _EVERY:
        return list(range(count))
    between = [int(k * count / _SOME) for k in range(_SOME)]
    ends = [*range(_ENDS), *range(count - _ENDS, count)]
    return sorted({*between, *ends})


def _moves_alone(point: torch.Tensor, place: int) -> bool:
    """Whether one entry may move without the others: not so of a symmetric matrix."""
    last = point.numel() - 1
    for k in {place, last}:
        unit = torch.zeros_like(point).contiguous()
        unit.view(-1)[k] = 1.0
        if not torch.equal(keep_step(point, unit), unit):
            return False
    return True


def _step(point: torch.Tensor, place: int, rough: bool) -> float:
    relative = _STEP[torch.float32 if rough else torch.float64]
    step = float(scale(point).abs().reshape(-1)[place]) * relative
    return float(f"{step:.0e}")  # short to write down


def _difference(
    at: _At, only: int, expected: torch.Tensor, got: torch.Tensor | None, known: torch.Tensor
) -> Difference:
    """What may explain the difference: gradients of others, sizes, and what a factor may be."""
    names = at.probe.inputs.names()
    others, parts = {}, {}
    wide = at.with_constants()
    for k, (name, point) in enumerate(zip(wide.probe.inputs.names(), wide.points, strict=True)):
        own = name == names[only] or point.shape != expected.shape
        other = None if own else wide.whole(k)
        if other is not None:
            others[f"the gradient of {name}"] = other
    for k in range(len(at.weights) if len(at.weights) > 1 else 0):
        alone = [w if j == k else w * 0 for j, w in enumerate(at.weights)]
        part = at.whole(only, alone)
        if part is not None:
            parts[f"output {k}"] = part
    pushed = at.pushed(only)
    if pushed is not None:
        others["the derivative times the cotangent, where its transpose is asked for"] = pushed
    cotangents = {f"cotangent of output {k}": w for k, w in enumerate(at.weights)}
    parts |= {f"the {name}": w for name, w in cotangents.items()}
    left, least = _left(at), torch.finfo(at.probe.dtype).eps
    arguments = dict(zip(at.probe.inputs.paths, at.probe.inputs.values, strict=True))
    indices = {path: v for path, v in arguments.items() if v.dtype == torch.int64 and v.numel()}
    return Difference(
        expected,
        got,
        known,
        sizes=_sizes(names, at.points, at.weights),
        others=others,
        parts=parts,
        reduced=cotangents,
        factors={
            **cotangents,
            **dict(zip(names, at.points, strict=True)),
            **{f"output {k}": y for k, y in enumerate(at.base)},
        },
        numbers=_numbers(at.probe.inputs.with_points(at.points), left),
        indices=indices,
        counts=_counts(arguments),
        lowered={path: t.dtype for path, t in left.items() if torch.finfo(t.dtype).eps > least},
        close=3e-2 if at.probe.rough or at.probe.grain else 1e-3,
    )


def _counts(arguments: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, int]]:
    """How many entries of targets and masks count, where not all of them do."""
    plain = {
        path: v for path, v in arguments.items() if not (v.is_floating_point() or v.is_complex())
    }
    found = {f"entries of {path} are not negative": v >= 0 for path, v in plain.items()}
    found |= {f"entries of {path} are not zero": v != 0 for path, v in plain.items()}
    counts = {said: (int(used.sum()), used.numel()) for said, used in found.items()}
    return {said: (some, every) for said, (some, every) in counts.items() if 0 < some < every}


def _left(at: _At) -> dict[str, torch.Tensor]:
    """What forward left for backward, by the expression that reaches it."""
    outputs = at.probe.evaluate(at.probe.leaves(at.points))
    found: dict[str, Any] = {}
    for node in custom_nodes(outputs):
        found |= {f"ctx.saved_tensors[{k}]": t for k, t in enumerate(node.saved_tensors)}
        found |= {held.path: held.value for held in context_tensors(node)}
    return {
        path: value.detach()
        for path, value in found.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    }


def _numbers(inputs: Arguments, left: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The numbers among the arguments and what forward left, those in tensors of one entry too."""
    plain = [*walk(inputs.args, "args"), *walk(dict(inputs.kwargs), "kwargs")]
    tensors = [*zip(inputs.paths, inputs.values, strict=True), *left.items()]
    single = [(path, v.item()) for path, v in tensors if v.numel() == 1 and v.is_floating_point()]
    return {
        path: float(value)
        for path, value in [*plain, *single]
        if type(value) in (int, float) and value not in (0, 1, -1) and math.isfinite(value)
    }


def _sizes(names: list[str], points: Tensors, weights: Tensors) -> dict[str, int]:
    """What a factor may be: the sizes of dimensions, and numbers of entries."""
    found = {}
    outputs = [f"output {k}" for k in range(len(weights))]
    for name, tensor in zip([*names, *outputs], [*points, *weights], strict=True):
        for dim, size in enumerate(tensor.shape):
            found[f"dimension {dim} of {name}"] = size
        for count in range(2, tensor.ndim):
            for dims in itertools.combinations(range(tensor.ndim), count):
                sizes = [tensor.shape[dim] for dim in dims]
                shown = f"dimensions {' and '.join(map(str, dims))} of {name}"
                found[f"{shown} ({' x '.join(map(str, sizes))})"] = math.prod(sizes)
    for name, tensor in zip([*names, *outputs], [*points, *weights], strict=True):
        if tensor.ndim > 1:
            found[f"{name} in all ({tensor.numel()} entries)"] = tensor.numel()
    return found
