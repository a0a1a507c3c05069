"""Tell steps from slopes: where an output moves with an input only by jumps, or smoothly, or not.

A straight-through estimator has a forward that is piecewise constant (rounding, a sign, a spike)
and a backward that is not zero. Finite differences cannot show this: a step of theirs crosses as
many edges as the input has entries. Three kinds of evidence do, each over a line through the point
that is long enough to cross edges:

1. **Small steps.** At random places on the line, four points close together: an entry that changes
   by like amounts three times over moves smoothly, one that stays is flat there.
2. **Values that differ far apart** although every small step was flat: the entry changes somewhere.
3. **Bisection** of such a change down to the spacing of floating-point numbers. A jump keeps its
   height; the steepest smooth function loses it, or shares it with its neighbours. So saturation
   (``tanh(50 x)``), softened rounding and kinks are never taken for steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._vectors import flatten

__all__ = [
    "REACHES",
    "Motion",
    "Scan",
    "is_flat",
    "jump",
    "jumps_along",
    "jumps_anywhere",
    "motions",
    "scan_line",
]

# How far the line reaches, in units of a step of the size of the input; less where that is refused.
REACHES = (4.0, 1.0, 0.25, 2.0**-6)
_PLACES = 12
_BISECTED = 3

Line = Callable[[float], torch.Tensor | None]


@dataclass(frozen=True)
class Motion:
    """How the entries of one output move with one input.

    Arguments:
        moves: whether any entry moves smoothly somewhere.
        jumps: whether any entry jumps somewhere.
    """

    moves: bool
    jumps: bool

    @property
    def is_stepped(self) -> bool:
        """Whether the output is piecewise constant, and not constant."""
        return self.jumps and not self.moves


@dataclass(frozen=True)
class Scan:
    """A line, looked at: places, values there, what moves and where an outlier lies.

    Arguments:
        line: the function along it; ``None`` where it is not defined.
        places: increasing, shape ``(n,)``.
        values: shape ``(n, entries)``.
        rounding: the change of each entry that rounding explains.
        moving: entries that move smoothly somewhere.
        outliers: entries with a place and the width around it where a change is not spread evenly.
        least: the shortest interval that floating-point numbers resolve.
        reach: how far the line goes to either side.
    """

    line: Line
    places: list[float]
    values: torch.Tensor
    rounding: torch.Tensor
    moving: torch.Tensor
    outliers: dict[int, tuple[float, float]]
    least: float
    reach: float


def motions(probe: Probe, only: int | None = None) -> list[Motion]:
    """How each differentiated output moves with one input, all of whose entries move.

    Arguments:
        probe: the subject.
        only: the position of the input that moves, or ``None`` for all at once.

    Returns:
        One motion for each output; empty where the function is not defined along any line.
    """
    scan = scan_line(probe, probe.direction(f"steps {only}", only))
    if scan is None:
        return []
    sizes = [y.numel() * (2 if y.is_complex() else 1) for y in _outputs(probe, None)]
    found, start = [], 0
    for size in sizes:
        found.append(_motion(scan, range(start, start + size)))
        start += size
    return found


def jumps_anywhere(probe: Probe, only: int, places: int = 97, tried: int = 12) -> bool:
    """Whether any output jumps with an input near the point, looked for in all entries.

    Asked before an input is held to its derivative although another is passed straight through: a
    learnt scale moves its outputs smoothly between the jumps of their codes.

    Arguments:
        probe: the subject.
        only: the position of the input.
        places: how many places of the line are compared.
        tried: how many of the likeliest jumps are bisected.

    Returns:
        Whether one is a jump.
    """
    step = probe.direction(f"jumps {only}", only)
    # Close by first, then farther: of a few entries none may change its code close by.
    return any(
        jumps_along(probe, step, reaches, places, tried) for reaches in (REACHES[2:], REACHES[1:])
    )


def jumps_along(
    probe: Probe, step: Tensors, reaches: tuple[float, ...], places: int = 97, tried: int = 12
) -> bool:
    """Whether any output jumps along a line; taken for granted where the line is not defined."""
    scan = scan_line(probe, step, reaches, close=False)
    if scan is None:
        return True
    low, high = scan.places[0], scan.places[-1]
    width = (high - low) / (places - 1)
    found = [scan.line(low + k * width) for k in range(places)]
    if any(v is None for v in found):
        return True
    steps = torch.stack([v for v in found if v is not None]).nan_to_num(0.0, 0.0, 0.0).diff(dim=0)
    # What the changes beside it do not explain, where rounding does not either.
    odd = (steps[1:-1] - (steps[:-2] + steps[2:]) / 2).abs()
    odd = torch.where(odd > 64 * scan.rounding, odd, 0.0)
    for place in odd.flatten().topk(min(tried, odd.numel())).indices.tolist():
        row, entry = divmod(place, odd.shape[1])
        start = low + (row + 1) * width
        if odd[row, entry] > 0 and jump(scan, entry, start, start + width) is not None:
            return True
    return False


def _outputs(probe: Probe, moved: Tensors | None) -> Tensors:
    with torch.no_grad():
        points = probe.inputs.points() if moved is None else moved
        return [y.detach() for y in probe.evaluate([x.clone() for x in points])]


def _precision(probe: Probe) -> float:
    """The unit of rounding that the outputs are computed with."""
    kinds = [y.dtype for y in _outputs(probe, None)] + [probe.dtype]
    return max(torch.finfo(kind).eps for kind in kinds)


def scan_line(
    probe: Probe, step: Tensors, reaches: tuple[float, ...] = REACHES, *, close: bool = True
) -> Scan | None:
    """Values along a line, and how they move close by where that is asked for.

    Arguments:
        probe: the subject.
        step: the direction.
        reaches: how far to go, the first that the function is defined at.
        close: whether to look at small steps.

    Returns:
        What was seen; ``None`` where the function is not defined along the line.
    """
    points = probe.inputs.points()

    def line(t: float) -> torch.Tensor | None:
        try:
            moved = [x + t * v for x, v in zip(points, step, strict=True)]
            return flatten(_outputs(probe, moved)).double()
        except Exception:  # not defined there: the line is made shorter
            return None

    base = line(0.0)
    if base is None:
        return None
    eps = _precision(probe)
    for reach in reaches:
        ends = line(-reach), line(reach)
        if all(end is not None and end.shape == base.shape for end in ends):
            return _look(probe, line, reach, eps, close)
    return None


def _look(probe: Probe, line: Line, reach: float, eps: float, close: bool) -> Scan | None:
    """Random places of the line; four points close together at each, with the widths in turn."""
    generator = probe.generator("places")
    jitter = torch.rand(_PLACES, generator=generator, dtype=torch.float64).tolist()
    digits = -math.log2(eps)
    widths = [2.0 ** -(0.75 * digits), 2.0 ** -(0.6 * digits), 2.0**-7]
    places, quartets, used = [], [], []
    for number, share in enumerate(jitter):
        place = reach * (2 * (number + share) / _PLACES - 1)
        width = widths[number % len(widths)]
        four = [line(place + k * width) for k in range(4 if close else 1)]
        if all(values is not None and values.shape == four[0].shape for values in four):  # type: ignore[union-attr]
            places.append(place)
            used.append(width)
            quartets.append(torch.stack(four))  # type: ignore[arg-type]
    if len(places) < 3:
        return None
    every = torch.stack(quartets).nan_to_num(0.0, 0.0, 0.0)
    size = every.abs().amax((0, 1))
    rounding = 8 * eps * (size + 1e-3 * size.max()) if size.numel() else size
    moving = torch.zeros_like(size, dtype=torch.bool)
    outliers: dict[int, tuple[float, float]] = {}
    for place, width, four in zip(places, used, every, strict=True) if close else ():
        changes = four.diff(dim=0)
        large, small = changes.abs().amax(0), changes.abs().amin(0)
        same = changes.sign().sum(0).abs() == 3
        if width < widths[-1]:
            moving |= (small > rounding) & (large <= 3 * small) & same
        odd = (large > 64 * rounding) & (large > 4 * _middle(changes.abs()))
        for entry in odd.nonzero().flatten()[:_BISECTED].tolist():
            outliers.setdefault(entry, (place, place + 3 * width))
    return Scan(line, places, every[:, 0], rounding, moving, outliers, 4 * eps * reach, reach)


def _middle(three: torch.Tensor) -> torch.Tensor:
    """The median of three rows: `torch.median` takes six times as long along columns."""
    a, b, c = three
    return torch.maximum(torch.minimum(a, b), torch.minimum(torch.maximum(a, b), c))


def _motion(scan: Scan, entries: range) -> Motion:
    """Whether entries of one output move and jump; jumps are confirmed by bisection."""
    inside = slice(entries.start, entries.stop)
    if not len(entries):
        return Motion(False, False)
    moves = bool(scan.moving[inside].any())
    odd = [(e, *place) for e, place in scan.outliers.items() if e in entries]
    for entry, low, high in odd[:_BISECTED]:
        place = jump(scan, entry, low, high)
        if place is not None:
            return Motion(moves or not is_flat(scan, slice(entry, entry + 1), place), True)
    changes = _changes(scan, entries)
    places = [jump(scan, entry, low, high) for entry, low, high in changes]
    # A change that is no jump is a slope that no small step happened upon, and so is one beside it.
    moves = moves or any(
        place is None or not is_flat(scan, slice(entry, entry + 1), place)
        for place, (entry, _, _) in zip(places, changes, strict=True)
    )
    return Motion(moves, any(place is not None for place in places))


def _changes(scan: Scan, entries: range) -> list[tuple[int, float, float]]:
    """A few entries whose values differ between neighbouring places, and where."""
    values = scan.values[:, entries.start : entries.stop]
    steps = values.diff(dim=0).abs()
    worth = steps > 64 * scan.rounding[entries.start : entries.stop]
    found = []
    most = torch.where(worth, steps, 0.0).amax(0)
    for offset in most.topk(min(_BISECTED, len(entries))).indices.tolist():
        if most[offset] > 0:
            k = int(steps[:, offset].argmax())
            found.append((entries.start + offset, scan.places[k], scan.places[k + 1]))
    return found


def jump(scan: Scan, entry: int, low: float, high: float) -> float | None:
    """Bisect towards the larger change: where a jump is, which keeps its height, or ``None``."""

    def at(t: float) -> float:
        values = scan.line(t)
        return math.nan if values is None else float(values[entry])

    first, last = at(low), at(high)
    if _is_slope(at, (low, first), (high, last), float(scan.rounding[entry])):
        return None
    least = max(8 * float(scan.rounding[entry]), abs(last - first) * 2.0**-24)
    while high - low > scan.least and not abs(last - first) <= least:
        middle = (low + high) / 2
        value = at(middle)
        if not math.isfinite(value):
            return None
        if abs(value - first) >= abs(last - value):
            high, last = middle, value
        else:
            low, first = middle, value
    height, width = abs(last - first), high - low
    if not height > least:
        return None
    # Where two entries compete, rounding lets a jump go to and fro for some widths: farther away
    # it is flat. A slope is not: there the change grows with the distance.
    holds = any(
        max(abs(first - at(low - far * width)), abs(at(high + far * width) - last)) <= height / 2
        for far in (4, 64, 1024)
    )
    return (low + high) / 2 if holds else None


# How much of an interval shows the slope at a place of it, and how exactly slopes make up a change.
_NEAR, _EXACT = 2.0**-12, 1e-4


def _is_slope(
    at: Callable[[float], float], low: tuple[float, float], high: tuple[float, float], noise: float
) -> bool:
    """Whether the slopes at both ends and in the middle, by Simpson's rule, make up a change.

    Then there is no jump to look for, which takes ten times as many values.
    """
    (start, first), (end, last) = low, high
    near, change = _NEAR * (end - start), last - first
    if not abs(change) * _NEAR * _EXACT > noise:
        return False  # rounding hides the slopes
    middle = (start + end) / 2
    ends = at(start + near) - first + last - at(end - near)
    inside = (at(middle + near) - at(middle - near)) / 2
    return abs((ends + 4 * inside) / (6 * _NEAR) - change) <= _EXACT * abs(change)


def is_flat(scan: Scan, entries: slice, place: float) -> bool:
    """Whether entries stand still on both sides of a jump, somewhere close to it.

    Rounding does. What is cut (``x * (x > 0.5)``) or lifted there moves on one side at least.
    """
    return all(_is_flat_beyond(scan, entries, place, side) for side in (-1, 1))


def _is_flat_beyond(scan: Scan, entries: slice, place: float, side: int) -> bool:
    # As far as the next jump is not, which may be close, and rounding does not hide a slope.
    apart = scan.reach / 16
    while apart > scan.reach * (scan.least / scan.reach) ** 0.6:
        near, far = scan.line(place + side * apart / 16), scan.line(place + side * apart)
        if near is not None and far is not None:
            change = (far - near).abs()[entries]
            if bool((change <= scan.rounding[entries]).all()):
                return True
        apart /= 16
    return False
