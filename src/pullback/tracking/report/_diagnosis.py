"""What runs say: `diagnose`, which layers look wrong; `diff`, where the scales of two part."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from pullback.errors import ArgumentError
from pullback.internal._arguments import checked
from pullback.tracking.measure._statistics import Statistics
from pullback.tracking.run._identity import Key, Observation
from pullback.tracking.run._log import Run, Series

__all__ = ["Change", "Finding", "Problem", "diagnose", "diff", "same_tensors"]


Problem = Literal["non-finite", "dead", "no gradient", "saturated", "drifting"]

_WORST_FIRST: tuple[Problem, ...] = get_args(Problem)

DEAD_SHARE = 0.999  # of all values being zero
SATURATED_RATIO = 0.9  # mean |x| against max |x|: nearly every value sits at the bound
SATURATED_LEAST = 16  # with fewer elements that happens by chance
DRIFT_OCTAVES = 3.0  # a change of scale by 8 between the first and the last tenth
DRIFT_MOMENTS = 8
STEADY = 0.8  # correlation of the scale with time


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that looks wrong.

    Arguments:
        problem: its kind.
        key: the tensor.
        detail: one sentence with the numbers.
        step: where it was first seen, if that is known.
    """

    problem: Problem
    key: Key
    detail: str
    step: int | None = None

    def __str__(self) -> str:
        where = "" if self.step is None else f" (step {self.step})"
        return f"{self.problem}: {self.key} [{self.key.direction}]{where}: {self.detail}"


@checked
def diagnose(run: Run) -> list[Finding]:
    """Look at every tensor of a run.

    - non-finite: it held a NaN or an infinity; the first one in the order of execution comes
      first of all, with what was measured just before it.
    - dead: at least 99.9 % of the elements of what a module returned were zero, over the moments
      still held.
    - no gradient: the same of a gradient.
    - saturated: the mean of ``|x|`` of what a module returned is above 0.9 of its maximum, so that
      nearly all elements sit at a bound, as those of a tanh far out do. Constant tensors are left
      alone. Parameters are no activations: those of a layer norm are near one, and its biases zero.
    - drifting: the scale changed by a factor of 8 or more, steadily; that of a gradient, an update
      or an optimizer's state by as much against the others, since all of them shrink with the loss.
      Not that of a parameter, which may begin at zero: what it does to a layer is seen there.

    A tensor of one number, such as a loss, neither saturates nor drifts, and its gradient neither.
    A tensor that several modules return is reported once.

    Arguments:
        run: a recorded run.

    Returns:
        The findings, worst kind first, each kind in the order of execution.
    """
    findings = []
    common = _common_drift(run)
    aliases = same_tensors(run)
    for series in run.series:
        if series.key.recomputed or series.key in aliases:
            continue
        found = (
            _nonfinite(series) or _dead(series) or _saturated(series) or _drifting(series, common)
        )
        if found is not None:
            findings.append(found)
    findings.sort(key=lambda finding: _WORST_FIRST.index(finding.problem))
    if run.first_nonfinite is None:
        return findings
    first = _first(run, run.first_nonfinite)
    same = first.problem, first.key
    return [first, *(each for each in findings if (each.problem, each.key) != same)]


def _first(run: Run, first: Observation) -> Finding:
    before = ", ".join(f"{key} ({key.direction}, {scale:.3g})" for key, scale in run.predecessors)
    detail = f"the first to hold {_bad(first.statistics)}"
    if before:
        detail += f"; measured before it: {before}"
    return Finding("non-finite", first.key, detail, first.place.step)


def _bad(statistics: Statistics) -> str:
    parts = (
        (statistics.nans, "NaN"),
        (statistics.positive_infinities, "+inf"),
        (statistics.negative_infinities, "-inf"),
    )
    named = " and ".join(f"{count} {name}" for count, name in parts if count)
    return f"{named} among {statistics.count}"


def _nonfinite(series: Series) -> Finding | None:
    if series.total.finite == series.total.count:
        return None
    bad = np.flatnonzero(series.points.flags & 7)
    # Where moments are gone, there may have been an earlier one among them.
    step = int(series.points.steps[bad[0]]) if len(bad) and not series.dropped else None
    return Finding("non-finite", series.key, f"it held {_bad(series.total)}", step)


def _dead(series: Series) -> Finding | None:
    total = series.total
    if total.count == 0 or not (series.key.order or series.key.source == "module"):
        return None
    share = float(np.mean(series.points.zeros)) if len(series.points) else total.zeros / total.count
    if share < DEAD_SHARE:
        return None
    problem: Problem = "dead" if series.key.order == 0 else "no gradient"
    return Finding(problem, series.key, f"{share:.1%} of its elements are zero")


def _saturated(series: Series) -> Finding | None:
    total = series.total
    if series.key.order or series.key.source != "module" or _is_one_number(series):
        return None
    if total.finite < SATURATED_LEAST or total.max_abs == 0:
        return None
    ratio = total.mean_abs / total.max_abs
    constant = total.min_abs == total.max_abs and total.std == 0
    if ratio < SATURATED_RATIO or constant:
        return None
    detail = f"mean |x| is {total.mean_abs:.3g} and max |x| only {total.max_abs:.3g}"
    return Finding("saturated", series.key, detail)


def _is_one_number(series: Series) -> bool:
    return series.key.source == "module" and series.total.count <= series.moments


def _drift(series: Series) -> float | None:
    """How many octaves the scale moved from the first to the last tenth of the moments."""
    level = series.points.scale[np.isfinite(series.points.scale)]
    if len(level) < DRIFT_MOMENTS:
        return None
    end = max(1, len(level) // 10)
    return float(np.median(level[-end:]) - np.median(level[:end]))


def _kind(key: Key) -> str:
    """What moves together with the loss: gradients, updates, each of an optimizer's states."""
    if key.order:
        return "gradients" + "'" * (key.order - 1)
    return "" if key.source in ("module", "parameter") else f"{key.name.rpartition('[')[2][:-1]}s"


def _common_drift(run: Run) -> dict[str, float]:
    """What all of a kind do together, which is the doing of the loss; values go their own ways."""
    found: dict[str, list[float]] = {"": [0.0]}
    for series in run.series:
        kind, moved = _kind(series.key), _drift(series)
        if kind and moved is not None:
            found.setdefault(kind, []).append(moved)
    return {kind: float(np.median(moves)) for kind, moves in found.items()}


def _drifting(series: Series, together: dict[str, float]) -> Finding | None:
    moved, kind = _drift(series), _kind(series.key)
    common = together.get(kind, 0.0)
    is_parameter = series.key.source == "parameter" and not series.key.order
    if moved is None or abs(moved - common) < DRIFT_OCTAVES:
        return None
    level = series.points.scale[np.isfinite(series.points.scale)]
    # What stays while others move correlates with nothing.
    if is_parameter or _is_one_number(series) or not np.ptp(level):
        return None
    if abs(np.corrcoef(np.arange(len(level)), level)[0, 1]) < STEADY:
        return None
    way = "grew" if moved > 0 else "shrank"
    beside = f", while {kind} in general moved by 2^{common:+.1f}" if common else ""
    detail = f"its scale {way} by 2^{abs(moved):.1f}, steadily{beside}"
    return Finding("drifting", series.key, detail)


def same_tensors(run: Run) -> dict[Key, Key]:
    """Series with the very numbers of an earlier one, each with that one.

    They are one tensor that several modules return, or the gradient of several terms of a sum.
    Equal in every statistic, to the last bit, and not constant: that is not a coincidence.
    """
    first: dict[tuple[object, ...], Key] = {}
    aliases: dict[Key, Key] = {}
    for series in run.series:
        key, total = series.key, series.total
        if total.m2 > 0:
            what = (key._replace(name=""), total.count, total.mean, total.m2, total.mean_abs)
            known = first.setdefault(what, key)
            if known != key:
                aliases[key] = known
    return aliases


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
            bad = f"{_count_bad(self.before)} -> {_count_bad(self.after)}"
            return f"{name}: {scales}; non-finite values {bad}"
        return f"{name}: {scales} (2^{self.octaves:+.2f})"


def _count_bad(statistics: Statistics) -> int:
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
    if before is None or after is None or (_count_bad(before) > 0) != (_count_bad(after) > 0):
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
