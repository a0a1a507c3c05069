"""The gradient of <w, f> entry by entry, by finite differences, beside what backward returns.

A directional derivative tells that a backward is wrong. Which entries are, and how, is told by
moving one entry at a time; of a large input some entries, spread out and at both ends.
"""

import time
from dataclasses import dataclass

import torch

from pullback.conformance._derivative import aligned
from pullback.conformance._directions import scale
from pullback.conformance._explain import Difference, explain
from pullback.conformance._finite import inner
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._shown import window
from pullback.conformance._structure import keep_step

__all__ = ["Entrywise", "compare_entries"]

_EVERY = 256
_SOME = 96
_ENDS = 24
# Seconds that moving entries may take; the others are not moved then.
_SECONDS = 1.5
_STEP = {torch.float64: 2.0**-17, torch.float32: 2.0**-6}
_APART = {torch.float64: 1e-4, torch.float32: 3e-2}


@dataclass(frozen=True)
class Entrywise:
    """The gradients of one input.

    Arguments:
        only: the position of the input.
        points: the differentiated inputs where they were taken.
        weights: the cotangents.
        expected: by finite differences; not a number where the entry was not moved.
        got: what backward returned, or ``None``.
        known: which entries were moved.
        said: in words, how the two differ.
        rough: whether the function computes in float32.
    """

    only: int
    points: Tensors
    weights: Tensors
    expected: torch.Tensor
    got: torch.Tensor | None
    known: torch.Tensor
    said: str
    rough: bool

    def steps(self) -> dict[int, float]:
        """The steps by which the entries that a report shows were moved, by flat index."""
        places = window(self.expected, self.shown)
        return {k: _step(self.points[self.only], k, self.rough) for k in places}

    @property
    def shown(self) -> torch.Tensor:
        """What backward returned, zeros for ``None``."""
        return torch.zeros_like(self.expected) if self.got is None else self.got


def compare_entries(probe: Probe, only: int | None) -> Entrywise | None:
    """Find an input whose gradient is wrong entry by entry, and say how.

    Arguments:
        probe: the subject, whose backward is known to be wrong.
        only: the position of the input, or ``None`` to look at each.

    Returns:
        The gradients of the first input that has wrong entries; ``None`` where no single entry can
        be moved, or none is wrong (the points tried by others are random, at a kink for example).
    """
    if probe.kin != "any":
        return None
    inputs = range(len(probe.inputs.differentiable)) if only is None else [only]
    until = time.monotonic() + _SECONDS
    for number in (0, 2):
        points = probe.point(number)
        for k in inputs:
            found = _gradients(probe, points, k, until)
            if found is not None:
                return found
    return None


def _gradients(probe: Probe, points: Tensors, only: int, until: float) -> Entrywise | None:
    base = probe.output_values(points)
    weights = probe.spread(base, "weights 0")
    point = points[only]
    places = _places(point.numel())
    if not places or not _moves_alone(point, places[0]):
        return None
    expected = torch.full_like(point, torch.nan)
    known = torch.zeros(point.shape, dtype=torch.bool)
    for place in places:
        if time.monotonic() > until and known.any():
            break
        value = _slope(probe, points, only, place, weights, base)
        if value is None:
            continue
        expected.reshape(-1)[place] = value
        known.view(-1)[place] = True
    got = _raw(probe, points, weights)[only]
    answered = torch.zeros_like(point) if got is None else got
    if not known.any() or answered.shape != point.shape:
        return None
    tolerance = _APART[torch.float32 if probe.rough or probe.grain else torch.float64]
    gap = (answered.cpu() - expected.cpu())[known].abs()
    if not bool((~(gap <= tolerance * expected.cpu()[known].abs().max())).any()):
        return None
    difference = _difference(probe, points, only, weights, expected, got, known, until)
    return Entrywise(only, points, weights, expected, got, known, explain(difference),
                     probe.rough)  # fmt: skip


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
        unit = torch.zeros_like(point)
        unit.view(-1)[k] = 1.0
        if not torch.equal(keep_step(point, unit), unit):
            return False
    return True


def _slope(
    probe: Probe, points: Tensors, only: int, place: int, weights: Tensors, base: Tensors
) -> complex | float | None:
    """d<w, f> by one entry; of a complex entry as autograd has it."""
    point = points[only]
    step = _step(point, place, probe.rough)
    found = []
    for unit in (1.0, 1j) if point.is_complex() else (1.0,):
        sides = []
        for sign in (1, -1):
            moved = [x.clone() for x in points]
            moved[only] = moved[only].contiguous()
            moved[only].view(-1)[place] += sign * step * unit
            try:
                with torch.no_grad():
                    outputs = aligned(probe.evaluate(moved), base)
            except Exception:  # refused there
                return None
            sides.append(sum(inner(w, y) for w, y in zip(weights, outputs, strict=True)))
        found.append((sides[0] - sides[1]) / (2 * step))
    return complex(*found) if len(found) == 2 else found[0]


def _step(point: torch.Tensor, place: int, rough: bool) -> float:
    relative = _STEP[torch.float32 if rough else torch.float64]
    step = float(scale(point).abs().reshape(-1)[place]) * relative
    return float(f"{step:.0e}")  # short to write down


def _raw(probe: Probe, points: Tensors, weights: Tensors) -> list[torch.Tensor | None]:
    """What autograd answers for each input, ``None`` where it answers nothing."""
    leaves = probe.leaves(points)
    outputs = probe.evaluate(leaves)
    pairs = [(y, w.clone()) for y, w in zip(outputs, weights, strict=True) if y.requires_grad]
    if not pairs:
        return [None] * len(leaves)
    answered = probe.gradients([y for y, _ in pairs], leaves, [w for _, w in pairs])
    return [None if g is None else g.detach() for g in answered]


def _difference(
    probe: Probe, points: Tensors, only: int, weights: Tensors,
    expected: torch.Tensor, got: torch.Tensor | None, known: torch.Tensor, until: float,
) -> Difference:  # fmt: skip
    names = probe.inputs.names()
    terms = {}
    for k, (name, point) in enumerate(zip(names, points, strict=True)):
        if k != only and point.shape == expected.shape and point.numel() <= _EVERY:
            other = _whole(probe, points, k, weights, until)
            if other is not None:
                terms[f"the gradient of {name}"] = other
    if len(weights) > 1 and bool(known.all()):
        for k in range(len(weights)):
            alone = [w if j == k else w * 0 for j, w in enumerate(weights)]
            other = _whole(probe, points, only, alone, until)
            if other is not None:
                terms[f"output {k}"] = other
    return Difference(
        expected, got, known,
        sizes=_sizes(names, points, weights),
        terms=terms,
        factors={
            **{f"cotangent of output {k}": w for k, w in enumerate(weights)},
            **dict(zip(names, points, strict=True)),
            "two": torch.full_like(expected, 2.0),
        },
        close=3e-2 if probe.rough or probe.grain else 1e-3,
    )  # fmt: skip


def _whole(
    probe: Probe, points: Tensors, only: int, weights: Tensors, until: float
) -> torch.Tensor | None:
    """All entries of another gradient; ``None`` where one cannot be had, or time is over."""
    base = probe.output_values(points)
    found = torch.zeros_like(points[only])
    for place in range(found.numel()):
        value = None if time.monotonic() > until else _slope(
            probe, points, only, place, weights, base
        )  # fmt: skip
        if value is None:
            return None
        found.view(-1)[place] = value
    return found


def _sizes(names: list[str], points: Tensors, weights: Tensors) -> dict[str, int]:
    """What a factor may be: the sizes of dimensions, and numbers of entries."""
    found = {}
    outputs = [f"output {k}" for k in range(len(weights))]
    for name, tensor in zip([*names, *outputs], [*points, *weights], strict=True):
        for dim, size in enumerate(tensor.shape):
            found[f"dimension {dim} of {name}"] = size
    for name, tensor in zip([*names, *outputs], [*points, *weights], strict=True):
        if tensor.ndim > 1:
            found[f"{name} in all ({tensor.numel()} entries)"] = tensor.numel()
    return found
