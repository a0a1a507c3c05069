"""Tell a quantiser that measures its range by single entries of its input.

It scales every output a little with the entry that sets the range, so that no output is piecewise
constant along a line on which all entries move. Along one entry alone it is: between two of its
jumps every output stands still, and backward answers all the same. An exact Function with jumps
(a threshold that cuts, a fraction) moves on one side of them, and where it does not its backward
is zero, whatever factor is wrong with it.

Signs times a measured mean move a little on both sides. There the jumps must be most of what the
entry does, and backward must foretell the whole change and not the smooth part alone.
"""

import itertools
from dataclasses import dataclass

import torch

from pullback.conformance._derivative import try_derivative
from pullback.conformance._evidence import inner
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._steps import Scan, is_flat, jumps, jumps_along, scan_line
from pullback.conformance._vectors import flatten, unflatten

__all__ = ["steps_by_entry"]

_ENTRIES = 6
# The whole line, for jumps that are few, and its middle, where the entry sets no range.
_FAR, _CLOSE = (2.0, 1.0, 0.25, 2.0**-6), (0.125,)
_PLACES = 33
_BISECTED = 3
# What is left to slopes, at most, of what moves mostly by jumps.
_SMOOTH = 0.4


@dataclass(frozen=True)
class _Entry:
    """One entry of an input that moves alone, and the output that moves most with it."""

    step: Tensors
    only: int
    number: int
    scan: Scan
    own: int


def steps_by_entry(probe: Probe, only: int) -> bool:
    """Whether outputs jump with single entries of an input, which backward passes straight through.

    Returns:
        Whether one entry tried stands still between its jumps, or half of them move mostly by
        jumps; not where an entry that nothing jumps with has a wrong derivative.
    """
    numbers = _spread_out(probe.inputs.points()[only].numel(), probe.generator("entries"))
    tried = [entry for number in numbers if (entry := _entry(probe, only, number))]
    if any(_is_passed(probe, entry) for entry in tried):
        return not any(
            try_derivative(probe, 0, step=entry.step).is_wrong
            and not jumps_along(probe, entry.step, _FAR)
            for entry in tried
        )
    return bool(tried) and 2 * sum(_jumps_most(probe, entry) for entry in tried) >= len(tried)


def _spread_out(count: int, generator: torch.Generator) -> list[int]:
    """A random entry of each of some equal parts: one part may be quantised and another not."""
    parts = min(count, _ENTRIES)
    edges = [count * k // parts for k in range(parts + 1)] if parts else []
    return [
        int(torch.randint(low, high, (1,), generator=generator))
        for low, high in itertools.pairwise(edges)
    ]


def _entry(
    probe: Probe, only: int, number: int, reaches: tuple[float, ...] = _FAR
) -> _Entry | None:
    """One entry and its line, as long as a typical entry is large; ``None`` if nothing moves."""
    step = probe.direction(f"entry {number}", only)
    flat = step[only].reshape(-1)
    alone = torch.zeros_like(flat)
    typical = flat.abs().square().mean().sqrt()
    alone[number] = flat[number].sgn() * torch.maximum(flat[number].abs(), typical)
    step[only] = alone.reshape(step[only].shape)
    scan = scan_line(probe, step, _PLACES, reaches)
    if scan is None:
        return None
    spread = scan.values.amax(0) - scan.values.amin(0)
    own = int(spread.argmax())
    moves = float(spread[own]) > 64 * float(scan.rounding[own])
    return _Entry(step, only, number, scan, own) if moves else None


def _is_passed(probe: Probe, entry: _Entry) -> bool:
    """Whether every output stands still on both sides of a jump, with a gradient all the same."""
    for line in (entry, _entry(probe, entry.only, entry.number, _CLOSE)):
        if line is None:
            continue
        for _, place in jumps(line.scan, line.own, _BISECTED):
            if is_flat(line.scan, None, place):
                return _foretold(probe, line, place) != 0
    return False


def _jumps_most(probe: Probe, entry: _Entry) -> bool:
    """Whether the entry's own output moves mostly by jumps, which backward foretells."""
    places, values = entry.scan.places, entry.scan.values[:, entry.own].tolist()
    widths = [b - a for a, b in itertools.pairwise(places)]
    near = 2 * entry.scan.reach / _PLACES * 2.0**-12
    beside = [entry.scan.line(t + near) for t in places]
    if len(places) < _PLACES or any(v is None for v in beside):
        return False
    changes = [float(v[entry.own]) - value for v, value in zip(beside, values, strict=True)]  # type: ignore[index]
    total = sum(abs(b - a) for a, b in itertools.pairwise(values))
    # A jump that happens to lie within a small step is no slope.
    slopes = [change / near * (abs(change) < total / 256) for change in changes]
    smooth = [slope * width for slope, width in zip(slopes, widths, strict=False)]
    if sum(map(abs, smooth)) >= _SMOOTH * total:
        return False
    told = [_foretold(probe, entry, t) * width for t, width in zip(places, widths, strict=False)]
    if abs(sum(told) - (values[-1] - values[0])) > abs(sum(told) - sum(smooth)):
        return False
    return any(True for _ in jumps(entry.scan, entry.own, 1))


def _foretold(probe: Probe, entry: _Entry, place: float) -> float:
    """The slope of the entry's own output along its line, as backward has it."""
    points = probe.inputs.points()
    moved = [x + place * v for x, v in zip(points, entry.step, strict=True)]
    outputs = probe.output_values(moved)
    unit = torch.zeros_like(flatten(outputs))
    unit[entry.own] = 1.0
    gradients = probe.backward(moved, unflatten(unit, outputs))
    gradient, step = (found[entry.only].reshape(-1) for found in (gradients, entry.step))
    return inner(gradient[entry.number], step[entry.number])
