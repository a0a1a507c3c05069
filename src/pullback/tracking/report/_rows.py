"""Which rows a report has, in which order, and which moments; and a run as text, a row a line."""

from dataclasses import replace

import numpy as np

from pullback.tracking.formats._noise import render_noise
from pullback.tracking.measure._statistics import Statistics
from pullback.tracking.report._diagnosis import same_tensors
from pullback.tracking.run._identity import Key
from pullback.tracking.run._log import BAD, Points, Run, Series

__all__ = [
    "GROUPS",
    "MOMENTS",
    "aliases_of",
    "count_groups",
    "gradient_of",
    "render_table",
    "row_name",
    "row_names",
    "thin",
]

GROUPS = {"module": "layers", "parameter": "parameters", "update": "updates", "state": "states"}
"""What is shown apart, by source: an optimizer's states are many, and far from layers in scale."""

MOMENTS = 400
"""How many a picture has room for."""


def row_name(key: Key) -> str:
    """The row that a series is shown in: the same for a value and its gradient."""
    shown = str(key._replace(order=max(key.order, 1)))
    return f"{shown} · tangent" if key.direction == "tangent" else shown


def count_groups(run: Run, names: list[str]) -> dict[str, int]:
    """How many rows each group has."""
    groups = {row_name(series.key): GROUPS[series.key.source] for series in run.series}
    return {group: sum(groups[name] == group for name in names) for group in GROUPS.values()}


def aliases_of(run: Run) -> dict[str, str]:
    """Rows whose value and gradient are those of an earlier row, each with that row."""
    same = same_tensors(run)
    keys = {series.key for series in run.series}
    aliases = {}
    for key, first in same.items():
        gradient, other = gradient_of(key), gradient_of(first)
        equal = same.get(gradient, gradient) == same.get(other, other)
        alone = gradient not in keys and other not in keys
        if key.direction == "forward" and (equal or alone):
            aliases[row_name(key)] = row_name(first)
    return aliases


def gradient_of(key: Key) -> Key:
    """The key of a value's gradient."""
    return key._replace(direction="backward", order=1)


def row_names(run: Run, aliases: dict[str, str]) -> list[str]:
    """All rows but the aliases, in the order of execution."""
    names = dict.fromkeys(row_name(series.key) for series in run.series)
    return [name for name in names if name not in aliases]


def thin(run: Run, moments: int = MOMENTS) -> Run:
    """Keep at most about so many moments of a run.

    Moments are taken at equal distances over the whole run, the same for every tensor; of a
    tensor that was non-finite in between, its first such moment is kept too.
    """
    steps = [_moments(series.points) for series in run.series]
    every = np.unique(np.concatenate(steps)) if steps else np.zeros(0, np.int64)
    if len(every) <= moments:
        return run
    chosen = every[np.linspace(0, len(every) - 1, moments).round().astype(np.int64)]
    series = tuple(
        Series(one.key, one.total, _keep(one.points, np.isin(at, chosen)))
        for one, at in zip(run.series, steps, strict=True)
    )
    return replace(run, series=series)


def _moments(points: Points) -> np.ndarray:
    """One number a moment, in their order."""
    return points.steps.astype(np.int64) * (1 << 20) + points.microbatches.astype(np.int64)


def _keep(points: Points, chosen: np.ndarray) -> Points:
    bad = np.flatnonzero((points.flags & BAD) > 0)
    chosen = chosen.copy()
    chosen[bad[:1]] = True
    return points[chosen]


_COLUMNS = ("scale", "mean", "max |x|", "zero", "bad")


def render_table(run: Run) -> str:
    """Every tensor on a line: its scale (root mean square), mean, maximum, share of zeros, and
    number of non-finite elements; first of the value, then of its gradient. Where formats were
    simulated and measured, the signal to quantisation noise of each layer's factors follows.
    """  # noqa: D205 - the claim is one sentence and takes two lines
    found = {series.key: series.total for series in run.series}
    values = [key for key in found if key.direction != "backward"]
    paired = {gradient_of(key) for key in values}
    alone = [key for key in found if key.direction == "backward" and key not in paired]
    header = ["tensor", *_COLUMNS, *(f"grad {name}" for name in _COLUMNS)]
    body = [[str(key), *_cells(found[key]), *_cells(found.get(gradient_of(key)))] for key in values]
    body += [[str(key), *_cells(None), *_cells(found[key])] for key in alone]
    widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]
    lines = [
        "  ".join([first.ljust(widths[0]), *map(str.rjust, cells, widths[1:])])
        for first, *cells in [header, ["-" * width for width in widths], *body]
    ]
    noise = ["", render_noise(run.noise)] if run.noise else []
    return "\n".join([*lines, *noise, *([run.advice] if run.advice else [])])


def _cells(statistics: Statistics | None) -> list[str]:
    if statistics is None:
        return [""] * len(_COLUMNS)
    share = statistics.zeros / statistics.count if statistics.count else 0.0
    bad = statistics.count - statistics.finite
    return [
        f"{statistics.scale:.3g}",
        f"{statistics.mean:.3g}",
        f"{statistics.max_abs:.3g}",
        f"{share:.1%}",
        str(bad) if bad else "",
    ]
