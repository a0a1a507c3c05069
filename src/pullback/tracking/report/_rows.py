"""Which rows a report has, in which order, and which moments; and a run as text, a row a line."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pullback.tracking.formats._noise import render_noise
from pullback.tracking.report._diagnosis import Finding, Problem, same_tensors
from pullback.tracking.run._identity import Key
from pullback.tracking.run._log import BAD, Run, Series

__all__ = ["GROUPS", "Row", "render_table", "row_name", "shown_rows", "thin"]

GROUPS = {"module": "layers", "parameter": "parameters", "update": "updates", "state": "states"}
"""What is shown apart, by source: an optimizer's states are many, and far from layers in scale."""

MOMENTS = 400
"""How many a picture has room for."""


@dataclass
class Row:
    """What a report shows as one: a value, or a tangent, and its gradient.

    Arguments:
        name: of the tensor, without a direction.
        group: one of `GROUPS`.
        sides: the value or tangent as ``"forward"``, and its gradient as ``"backward"``.
        also: the names of later rows that are the same tensors.
        problems: what looks wrong, each kind once, the worst first.
        rank: the place of the worst among all findings, or how many these are.
    """

    name: str
    group: str
    sides: dict[str, Series] = field(default_factory=dict)
    also: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    rank: int = 0


def row_name(key: Key) -> str:
    """The row that a series is shown in: the same for a value and its gradient."""
    shown = str(key._replace(order=max(key.order, 1)))
    return f"{shown} · tangent" if key.direction == "tangent" else shown


def _all_rows(run: Run) -> dict[str, Row]:
    """Every row by its name, in the order of execution."""
    rows: dict[str, Row] = {}
    for series in run.series:
        name = row_name(series.key)
        row = rows.setdefault(name, Row(name, GROUPS[series.key.source]))
        row.sides["backward" if series.key.direction == "backward" else "forward"] = series
    return rows


def shown_rows(run: Run, findings: Sequence[Finding]) -> list[Row]:
    """The rows with what was found, those merged of which every tensor is the same."""
    rows, same = _all_rows(run), same_tensors(run)
    firsts: dict[frozenset[Key], Row] = {}
    for name, row in rows.items():
        row.rank = len(findings)
        tensors = frozenset(same.get(one.key, one.key) for one in row.sides.values())
        rows[name] = firsts.setdefault(tensors, row)
        if rows[name] is not row:
            rows[name].also.append(name)
    for rank, finding in enumerate(findings):
        row = rows[row_name(finding.key)]
        row.rank = min(row.rank, rank)
        if finding.problem not in row.problems:
            row.problems.append(finding.problem)
    return list(firsts.values())


def thin(run: Run, moments: int = MOMENTS) -> Run:
    """Keep at most about so many moments of a run.

    Moments are taken at equal distances over the whole run, the same for every tensor; of a
    tensor that was non-finite in between, its first such moment is kept too.
    """
    # One number a moment, in their order.
    steps = [
        one.points.steps.astype(np.int64) * (1 << 20) + one.points.microbatches.astype(np.int64)
        for one in run.series
    ]
    every = np.unique(np.concatenate(steps)) if steps else np.zeros(0, np.int64)
    if len(every) <= moments:
        return run
    chosen = every[np.linspace(0, len(every) - 1, moments).round().astype(np.int64)]
    series = []
    for one, at in zip(run.series, steps, strict=True):
        kept = np.isin(at, chosen)
        kept[np.flatnonzero((one.points.flags & BAD) > 0)[:1]] = True
        series.append(replace(one, points=one.points[kept]))
    return replace(run, series=tuple(series))


_COLUMNS = ("scale", "mean", "max |x|", "zero", "bad")


def render_table(run: Run) -> str:
    """Every tensor on a line: its scale (root mean square), mean, maximum, share of zeros, and
    number of non-finite elements; first of the value, then of its gradient. Where formats were
    simulated and measured, the signal to quantisation noise of each layer's factors follows.
    """  # noqa: D205 - the claim is one sentence and takes two lines
    header = ["tensor", *_COLUMNS, *(f"grad {name}" for name in _COLUMNS)]
    body = [
        [name, *_cells(row.sides.get("forward")), *_cells(row.sides.get("backward"))]
        for name, row in _all_rows(run).items()
    ]
    widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]
    lines = [
        "  ".join([first.ljust(widths[0]), *map(str.rjust, cells, widths[1:])])
        for first, *cells in [header, ["-" * width for width in widths], *body]
    ]
    noise = ["", render_noise(run.noise)] if run.noise else []
    return "\n".join([*lines, *noise, *([run.advice] if run.advice else [])])


def _cells(series: Series | None) -> list[str]:
    if series is None:
        return [""] * len(_COLUMNS)
    statistics = series.total
    share = statistics.zeros / statistics.count if statistics.count else 0.0
    bad = statistics.count - statistics.finite
    return [
        f"{statistics.scale:.3g}",
        f"{statistics.mean:.3g}",
        f"{statistics.max_abs:.3g}",
        f"{share:.1%}",
        str(bad) if bad else "",
    ]
