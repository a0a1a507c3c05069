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
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from pullback.conformance.inputs._vectors import coarsest
from pullback.conformance.probing._probe import Probe, Tensors
from pullback.conformance.process._failure import attempt

__all__ = ["REACHES", "Motion", "Scan", "is_flat", "is_smooth", "jump", "jumps", "jumps_along",
           "motions", "scan_line"]  # fmt: skip

# How far the line reaches, in units of a step of the size of the input; less where that is refused.
REACHES = (4.0, 1.0, 0.25, 2.0**-6)
_PLACES, _MANY = 12, 97
_BISECTED = 3

Line = Callable[[float], torch.Tensor | None]


@dataclass(frozen=True)
class Motion:
    """How the entries of one output move with one input."""

    moves: bool  # whether any entry moves smoothly somewhere
    jumps: bool  # whether any entry jumps somewhere

    @property
    def is_stepped(self) -> bool:
        """Whether the output is piecewise constant, and not constant."""
        return self.jumps and not self.moves


@dataclass(frozen=True)
class Scan:
    """A line, looked at: places and the values there."""

    line: Line  # the function along it; ``None`` where it is not defined
    places: list[float]  # increasing, shape ``(n,)``
    values: torch.Tensor  # shape ``(n, entries)``
    rounding: torch.Tensor  # the change of each entry that rounding explains
    least: float  # the shortest interval that floating-point numbers resolve
    reach: float  # how far the line goes to either side


def motions(probe: Probe, only: int | None = None) -> list[Motion]:
    """How each differentiated output moves with one input, or with all at once.

    All entries of it move. Nothing where the function is not defined along any line.
    """
    scan = scan_line(probe, probe.direction(f"steps {only}", only), _PLACES)
    if scan is None:
        return []
    moving, outliers = _close_by(probe, scan)
    found, start = [], 0
    for y in probe.output_values():
        stop = start + y.numel() * (2 if y.is_complex() else 1)
        odd = [one for one in outliers if start <= one[0] < stop][:_BISECTED]
        found.append(_motion(scan, slice(start, stop), bool(moving[start:stop].any()), odd))
        start = stop
    return found


# A line of so many places, how many on either side foretell the one between, and how exactly.
_EVEN, _SIDE, _FORETOLD = 33, 5, 1e-5


def is_smooth(probe: Probe, only: int) -> bool:
    """Whether every output moves smoothly with one input, as far as half of its size to each side.

    All entries of it move. At places h apart the polynomial through five on either side foretells
    what bends at a scale of s to within 14,400 (h / s)^10, and is off by as much as anything jumps.
    """
    along = probe.line(probe.direction(f"steps {only}", only))
    try:
        values = torch.stack([along(k / (_EVEN - 1) - 0.5).double() for k in range(_EVEN)])
    except Exception:  # not defined so far away, or of other sizes
        return False
    sides = [k for k in range(-_SIDE, _SIDE + 1) if k]
    shares = [math.prod(j / (j - k) for j in sides if j != k) for k in sides]
    windows = values.unfold(0, 2 * _SIDE + 1, 1)
    foretold = sum(share * windows[..., _SIDE + k] for share, k in zip(shares, sides, strict=True))
    size = values.abs().amax(0)
    least = _FORETOLD * (values.amax(0) - values.amin(0)) + 2**10 * _precision(probe) * size
    return bool(((foretold - windows[..., _SIDE]).abs() <= least).all())


def scan_line(
    probe: Probe, step: Tensors, places: int, reaches: tuple[float, ...] = REACHES
) -> Scan | None:
    """Values along a line, at so many places, at random within equal parts of it.

    It goes as far as the first reach where the function is defined; ``None`` where there is none.
    """
    along = probe.line(step)

    def line(t: float) -> torch.Tensor | None:
        values = attempt(lambda: along(t).double(), None)  # not defined there: it is made shorter
        fits = values is not None and (base is None or values.shape == base.shape)
        return values if fits else None

    base: torch.Tensor | None = None
    base = line(0.0)
    reach = next((r for r in reaches if line(-r) is not None and line(r) is not None), None)
    if base is None or reach is None:
        return None
    how = {"generator": probe.generator("places"), "dtype": torch.float64, "device": "cpu"}
    jitter = torch.rand(places, **how)
    chosen = [reach * (2 * (k + u) / places - 1) for k, u in enumerate(jitter.tolist())]
    found = [(t, values) for t in chosen if (values := line(t)) is not None]
    if len(found) < 3:
        return None
    values = torch.stack([values for _, values in found]).nan_to_num(0.0, 0.0, 0.0)
    size, eps = values.abs().amax(0), _precision(probe)
    rounding = 8 * eps * (size + 1e-3 * size.max()) if size.numel() else size
    return Scan(line, [t for t, _ in found], values, rounding, 4 * eps * reach, reach)


def _precision(probe: Probe) -> float:
    """The unit of rounding that the outputs are computed with."""
    return max(coarsest(probe.output_values()), torch.finfo(probe.dtype).eps)


Interval = tuple[int, float, float]  # an entry, and where it changes


def _close_by(probe: Probe, scan: Scan) -> tuple[torch.Tensor, list[Interval]]:
    """Four values close together at each place, with three widths in turn.

    Returns:
        Which entries move smoothly somewhere, and where a change is not spread evenly.
    """
    digits = -math.log2(_precision(probe))
    widths = [2.0 ** -(0.75 * digits), 2.0 ** -(0.6 * digits), 2.0**-7]
    moving = torch.zeros_like(scan.rounding, dtype=torch.bool)
    outliers: dict[int, Interval] = {}
    for number, (place, first) in enumerate(zip(scan.places, scan.values, strict=True)):
        width = widths[number % len(widths)]
        four = [first, *(scan.line(place + k * width) for k in (1, 2, 3))]
        if any(values is None for values in four):
            continue
        changes = torch.stack(four).nan_to_num(0.0, 0.0, 0.0).diff(dim=0)  # type: ignore[arg-type]
        large, small = changes.abs().amax(0), changes.abs().amin(0)
        same = changes.sign().sum(0).abs() == 3
        if width < widths[-1]:
            moving |= (small > scan.rounding) & (large <= 3 * small) & same
        a, b, c = changes.abs()  # whose median `torch.median` takes six times as long for
        middle = torch.maximum(torch.minimum(a, b), torch.minimum(torch.maximum(a, b), c))
        odd = (large > 64 * scan.rounding) & (large > 4 * middle)
        for entry in odd.nonzero().flatten()[:_BISECTED].tolist():
            outliers.setdefault(entry, (entry, place, place + 3 * width))
    return moving, list(outliers.values())


def _motion(scan: Scan, inside: slice, moves: bool, odd: list[Interval]) -> Motion:
    """Whether entries of one output move and jump; jumps are confirmed by bisection."""
    for interval in odd:
        place = jump(scan, *interval)
        if place is not None:
            return Motion(moves or not is_flat(scan, interval[0], place), True)
    found = False
    # A change that is no jump is a slope that no small step happened upon, and so is one beside it.
    for interval in _changes(scan, scan.values[:, inside].diff(dim=0).abs(), inside, _BISECTED):
        place = jump(scan, *interval)
        found = found or place is not None
        moves = moves or place is None or not is_flat(scan, interval[0], place)
    return Motion(moves, found)


def jumps_along(probe: Probe, step: Tensors, *reaches: tuple[float, ...]) -> bool:
    """Whether any output jumps along a line, so far or so far.

    Asked before an input is held to its derivative although another is passed straight through: a
    learnt scale moves its outputs smoothly between the jumps of their codes. It is taken for
    granted where the line is not defined.
    """
    scans = (scan_line(probe, step, _MANY, reach) for reach in reaches)
    return any(s is None or len(s.places) < _MANY or any(True for _ in jumps(s)) for s in scans)


def jumps(
    scan: Scan, entry: int | None = None, tried: int = 12
) -> Iterator[tuple[int, float]]:  # fmt: skip
    """The entries that jump, or whether one does, and where, of the likeliest intervals."""
    inside = slice(entry, None if entry is None else entry + 1)
    widths = scan.values.new_tensor(scan.places).diff()[:, None]
    slopes = scan.values[:, inside].diff(dim=0) / widths
    beside = torch.cat([slopes[1:2], slopes, slopes[-2:-1]])
    # What the changes beside it do not explain.
    odd = (slopes - (beside[:-2] + beside[2:]) / 2).abs() * widths
    for interval in _changes(scan, odd, inside, tried):
        place = jump(scan, *interval)
        if place is not None:
            yield interval[0], place


def _changes(scan: Scan, sizes: torch.Tensor, inside: slice, tried: int) -> Iterator[Interval]:
    """The intervals between places whose size is largest, and more than rounding explains."""
    worth = torch.where(sizes > 64 * scan.rounding[inside], sizes, 0.0)
    for place in worth.flatten().topk(min(tried, worth.numel())).indices.tolist():
        row, entry = divmod(place, worth.shape[1])
        if worth[row, entry] > 0:
            yield (inside.start or 0) + entry, scan.places[row], scan.places[row + 1]


def jump(scan: Scan, entry: int, low: float, high: float) -> float | None:
    """Bisect towards the larger change: where a jump is, which keeps its height, or ``None``."""

    def at(t: float) -> float:
        values = scan.line(t)
        return math.nan if values is None else float(values[entry])

    first, last = at(low), at(high)
    if _is_slope(at, (low, first), (high, last), float(scan.rounding[entry])):
        return None
    least = max(8 * float(scan.rounding[entry]), abs(last - first) * 2.0**-24)
    looked = (high - low) / _CLOSER
    while high - low > scan.least and not abs(last - first) <= least:
        if high - low <= looked:  # the slopes of what bends are closer to its change here
            looked = 0.0
            if _is_slope(at, (low, first), (high, last), float(scan.rounding[entry])):
                return None
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


# How much of an interval shows the slope at a place of it, and how exactly slopes make up a change;
# of how small a part of an interval they are asked once more.
_NEAR, _EXACT, _CLOSER = 2.0**-12, 1e-4, 16


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


def is_flat(scan: Scan, entry: int | None, place: float) -> bool:
    """Whether an entry, or every one, stands still on both sides of a jump, somewhere close to it.

    Rounding does. What is cut (``x * (x > 0.5)``) or lifted there moves on one side at least.
    """
    return all(_is_flat_beyond(scan, entry, place, side) for side in (-1, 1))


def _is_flat_beyond(scan: Scan, entry: int | None, place: float, side: int) -> bool:
    # As far as the next jump is not, which may be close, and rounding does not hide a slope.
    inside = slice(entry, None if entry is None else entry + 1)
    apart = scan.reach / 16
    while apart > scan.reach * (scan.least / scan.reach) ** 0.6:
        near, far = scan.line(place + side * apart / 16), scan.line(place + side * apart)
        known = near is not None and far is not None
        if known and bool(((far - near).abs() <= scan.rounding)[inside].all()):
            return True
        apart /= 16
    return False
