"""`diff`: where the scales of two recorded runs part."""

import math
from dataclasses import dataclass

from pullback.errors import ArgumentError
from pullback.internal._arguments import checked
from pullback.tracking.measure._statistics import Statistics
from pullback.tracking.run._identity import Key
from pullback.tracking.run._log import Run

__all__ = ["Change", "diff"]


@dataclass(frozen=True, slots=True)
class Change:
    """One tensor that differs between two runs.

    Arguments:
        key: the tensor.
        before: its statistics in the first run, or ``None`` if it is new.
        after: its statistics in the second run, or ``None`` if it is gone.
        octaves: log2 of the ratio of scales, or of the largest ``|x|`` where float64 does not hold
            a scale; infinite where one of them is missing, zero or not finite.
    """

    key: Key
    before: Statistics | None
    after: Statistics | None
    octaves: float

    def __str__(self) -> str:
        name = f"{self.key} [{self.key.direction}]"
        if self.before is None:
            return f"{name}: only in the second run"
        if self.after is None:
            return f"{name}: only in the first run"
        first, second = _sizes(self.before, self.after)
        scales = f"{first:.4g} -> {second:.4g}"
        if math.isinf(self.octaves):
            return f"{name}: {scales}; non-finite values {_bad(self.before)} -> {_bad(self.after)}"
        return f"{name}: {scales} (2^{self.octaves:+.2f})"


def _bad(statistics: Statistics) -> int:
    return statistics.count - statistics.finite


@checked
def diff(run_a: Run, run_b: Run, threshold: float = 1.0) -> list[Change]:
    """Compare two runs tensor by tensor.

    A tensor is reported if its scale over the whole run moved by more than the threshold, if
    only one of the runs has it, or if only one of them saw it non-finite or all zero. Where float64
    does not hold the squares of one of them, their largest magnitudes are compared.

    Arguments:
        run_a: a recorded run.
        run_b: another.
        threshold: how far a scale may move, in octaves: 1 is a factor of two either way.

    Returns:
        The changes, largest first.

    Raises:
        ArgumentTypeError: what is no run, or a threshold that is not a number.
        ArgumentError: a negative threshold.
    """
    if threshold < 0:
        raise ArgumentError(
            "The threshold is a distance in octaves.",
            given=f"threshold={threshold!r}",
            expected="a number, 0 or more",
        )
    first = {series.key: series.total for series in run_a.series}
    second = {series.key: series.total for series in run_b.series}
    changes = []
    for key in dict.fromkeys([*first, *second]):
        before, after = first.get(key), second.get(key)
        octaves = _octaves(before, after)
        if abs(octaves) > threshold:
            changes.append(Change(key, before, after, octaves))
    return sorted(changes, key=lambda change: -abs(change.octaves))


def _octaves(before: Statistics | None, after: Statistics | None) -> float:
    if before is None or after is None or (_bad(before) > 0) != (_bad(after) > 0):
        return math.inf
    first, second = _sizes(before, after)
    if first == second or before.finite == after.finite == 0:
        return 0.0
    if not (first > 0 and second > 0):  # zero, or nothing finite
        return math.inf
    return math.log2(second) - math.log2(first)


def _sizes(before: Statistics, after: Statistics) -> tuple[float, float]:
    """The scales of both, or their largest magnitudes if float64 does not hold a scale."""
    pair = before, after
    if any(each.finite and math.isnan(each.scale) for each in pair):
        return before.max_abs, after.max_abs
    return before.scale, after.scale
