"""`write_png`: a run as a picture, through the extra ``plot``."""

from pathlib import Path
from typing import Any

import numpy as np

from pullback.errors import RecordingError
from pullback.internal._extras import require
from pullback.tracking.formats import FLOAT16
from pullback.tracking.report._diagnosis import diagnose
from pullback.tracking.report._rows import GROUPS, shown_rows, thin
from pullback.tracking.run._log import BAD, Run, Series

__all__ = ["write_png"]

ROWS = 12
INK = {"forward": "#1f6feb", "backward": "#c2570c"}
BAD_INK = "#c81e4a"
NORMAL = {"color": "#1a7f4b", "alpha": 0.10, "linewidth": 0}
SUBNORMAL = {"color": "#d69e00", "alpha": 0.16, "linewidth": 0}


def write_png(run: Run, path: str | Path) -> None:
    """Draw scales over time, forward and backward side by side, problem layers first.

    At most twelve layers are drawn, and what looks wrong of parameters and the optimizer; the page
    of `to_html` has them all. The path's ending chooses the format, as matplotlib knows them.

    Raises:
        MissingExtraError: matplotlib is not installed.
        RecordingError: the file cannot be written.
    """
    figure_module = require("matplotlib.figure", extra="plot", purpose="Drawing a run")
    findings, run = diagnose(run), thin(run)
    rows = shown_rows(run, findings)
    drawn = [row for row in rows if row.problems or row.group == GROUPS["module"]]
    order = sorted(drawn, key=lambda row: row.rank)  # the worst at the top
    height = 1.5 * max(len(order[:ROWS]), 1) + 1.3
    figure = figure_module.Figure(figsize=(12, height))
    grid = figure.subplots(max(len(order[:ROWS]), 1), 2, squeeze=False, sharex=True)
    for axes, row in zip(grid, order, strict=False):
        for column, direction in enumerate(INK):
            alike = [
                each.sides[direction]
                for each in rows
                if each.group == row.group and direction in each.sides
            ]
            _draw(axes[column], row.sides.get(direction), direction, _span(alike))
        title = f"{row.name}: {', '.join(row.problems)}" if row.problems else row.name
        ink = BAD_INK if row.problems else "black"
        axes[0].set_title(title, loc="left", fontsize=9, color=ink)
    for column, direction in enumerate(("forward: values", "backward: gradients")):
        grid[0][column].set_title(direction, loc="right", fontsize=9, color="#6b7482")
        grid[-1][column].set_xlabel("step", fontsize=9)
    left = f", {len(order) - ROWS} layers more in the HTML report" if len(order) > ROWS else ""
    figure.suptitle(f"{run.title}: scales over time{left}", y=1 - 0.2 / height)
    figure.legend(
        *_key(),
        loc="upper center",
        bbox_to_anchor=(0.5, 1 - 0.32 / height),
        ncols=5,
        fontsize=9,
        frameon=False,
    )
    figure.subplots_adjust(0.05, 0.5 / height, 0.98, 1 - 1.0 / height, 0.1, 0.4)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise RecordingError(
            "The picture cannot be written.", given=str(path), expected=str(error)
        ) from error


def _key() -> tuple[list[Any], list[str]]:
    """What lines and shades mean, once for the whole picture."""
    lines = require("matplotlib.lines", extra="plot", purpose="Drawing a run")
    patches = require("matplotlib.patches", extra="plot", purpose="Drawing a run")
    ink = "#444b55"
    return [
        lines.Line2D([], [], color=ink, linewidth=1.6),
        lines.Line2D([], [], color=ink, linewidth=0.8, linestyle="--"),
        patches.Patch(**NORMAL),
        patches.Patch(**SUBNORMAL),
        lines.Line2D([], [], color=BAD_INK, marker="D", linestyle="none"),
    ], [
        "log2 of the scale (root mean square)",
        "log2 of the largest |x|",
        f"normal range of {FLOAT16.name}",
        "its subnormal range",
        "NaN or infinity",
    ]


def _span(together: list[Series]) -> tuple[float, float]:
    """The range of scales and maxima that are drawn alike, with a margin."""
    levels = [series.points.scale for series in together]
    levels += [series.points.peak for series in together]
    every = np.concatenate(levels) if levels else np.zeros(0)
    every = every[np.isfinite(every)]
    if not len(every):
        return -4.0, 4.0
    return float(every.min()) - 1.0, float(every.max()) + 1.0


def _draw(axes: Any, series: Series | None, direction: str, span: tuple[float, float]) -> None:
    axes.set_ylim(*span)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    tiny, normal, top = FLOAT16.reach
    axes.axhspan(normal, top, **NORMAL)
    axes.axhspan(tiny, normal, **SUBNORMAL)
    if series is None or not len(series.points):
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="#6b7482")
        return
    points, ink = series.points, INK[direction]
    zero = np.isneginf(points.scale)
    if zero.any():
        when = "all zero" if zero.all() else "all zero at times"
        axes.text(0.01, 0.06, when, transform=axes.transAxes, color=ink, fontsize=8)
    with np.errstate(invalid="ignore"):
        scale = np.where(np.isfinite(points.scale), points.scale, np.nan)
        peak = np.where(np.isfinite(points.peak), points.peak, np.nan)
    marker = "." if len(points) == 1 else None
    axes.plot(points.steps, scale, color=ink, linewidth=1.6, marker=marker)
    axes.plot(points.steps, peak, color=ink, linewidth=0.8, linestyle="--", marker=marker)
    bad = (points.flags & BAD) > 0
    axes.plot(
        points.steps[bad], np.full(int(bad.sum()), span[1]), "D", color=BAD_INK, clip_on=False
    )
