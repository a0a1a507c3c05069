"""The names of ``unit_scaling.analysis``; see `pullback.compat.unit_scaling`."""

import re
from collections.abc import Iterator
from math import isfinite
from typing import Any

from torch import fx

from pullback.compat.unit_scaling.transforms import (
    Metrics,
    prune_non_float_tensors,
    prune_same_scale_tensors,
)
from pullback.errors import ArgumentError
from pullback.internal._extras import require

__all__ = ["plot"]

# Of a direction: the attribute of Metrics, its words, a colour, and how far its bars are moved.
_DIRECTIONS = (("fwd", "forward", "#0173b2", -0.1), ("bwd", "backward", "#de8f05", 0.1))
_LIMITS = {
    2.0**-14: "FP16 min,\nFP8 E5 min\n(normal)",
    2.0**-7: "FP8 E4 min\n(normal)",
    240.0: "FP8 E4 max",
    2.0**16: "FP16 max,\nFP8 E5 max",
}


def plot(
    g: fx.Graph,
    title: str = "",
    metric: str = "mean_abs",
    prune_same_scale: bool = True,
    show_arrows: bool = True,
    show_error_bars: bool = True,
    show_zero_tensors: bool = False,
    xmin: float | None = None,
    xmax: float | None = None,
) -> Any:
    """Draw the scales of a tracked graph, one line for each value, on a log2 axis.

    Arguments:
        g: from ``scales_graph()``.
        title: the title.
        metric: a metric's short name or its name in words.
        prune_same_scale: leave out what has the scale of its argument, like reshapes.
        show_arrows: draw an arrow for each dependency.
        show_error_bars: draw a bar from the smallest to the largest magnitude.
        show_zero_tensors: draw arrows to values that are all zero, marked 0.
        xmin: the left end of the axis.
        xmax: the right end of the axis.

    Returns:
        The ``matplotlib.axes.Axes``.

    Raises:
        ArgumentError: an unknown metric, or a graph that was not tracked.
        MissingExtraError: matplotlib is not installed.
    """
    short = dict(zip(Metrics.full_names(), Metrics.names(), strict=True)).get(metric, metric)
    if short not in Metrics.names():
        names = ", ".join(Metrics.names())
        raise ArgumentError("There is no such metric.", given=f"{metric=}", expected=names)
    pyplot = require("matplotlib.pyplot", extra="plot", purpose="plot")
    g = prune_non_float_tensors(g)
    g = prune_same_scale_tensors(g) if prune_same_scale else g
    rows = {node: row for row, node in enumerate(n for n in g.nodes if n.op != "output")}
    _, axes = pyplot.subplots(figsize=(10, max(len(rows) / 4, 2)))
    axes.set_xscale("log", base=2)
    _draw_points(axes, rows, short)
    for x, text in _LIMITS.items():
        axes.axvline(x, color="grey", linestyle="--", linewidth=1)
        axes.text(x, len(rows) + 0.2, text, ha="center", va="top", size=9)
    low, high = axes.get_xlim()
    axes.set_xlim(low if xmin is None else xmin, high if xmax is None else xmax)
    if show_error_bars:
        _draw_bars(axes, rows)
    if show_arrows:
        _draw_arrows(axes, rows, short, show_zero_tensors)
    axes.set(ylim=(len(rows), -1), ylabel="layer", xlabel=Metrics.get_full_name(short), title=title)
    axes.set_yticks(range(len(rows)), [_short_name(node.meta["clean_name"]) for node in rows])
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="upper right")
    return axes


def _draw_points(axes: Any, rows: dict[fx.Node, int], metric: str) -> None:
    for direction, words, colour, _ in _DIRECTIONS:
        for weight, marker in ((False, "."), (True, "v")):
            here = {n: row for n, row in rows.items() if n.meta["requires_grad"] == weight}
            points = [
                (x, row) for n, row in here.items() if _is_drawn(x := _read(n, direction, metric))
            ]
            label = f"{words} pass, {'' if weight else 'non-'}weight tensor"
            xs, ys = [x for x, _ in points], [row for _, row in points]
            axes.plot(xs, ys, marker, markersize=9, color=colour, label=label)


def _draw_bars(axes: Any, rows: dict[fx.Node, int]) -> None:
    left = axes.get_xlim()[0]
    for direction, _, colour, shift in _DIRECTIONS:
        for node, row in rows.items():
            low, high = (_read(node, direction, name) for name in ("abs_min", "abs_max"))
            if _is_drawn(high) and low is not None and isfinite(low):
                style = {"color": colour, "alpha": 0.35, "linewidth": 1, "zorder": 1}
                ends, y = [max(low, left), high], row + shift
                axes.hlines(y, *ends, **style)
                axes.vlines(ends, y - 0.2, y + 0.2, **style)


def _draw_arrows(axes: Any, rows: dict[fx.Node, int], metric: str, show_zero: bool) -> None:
    left = axes.get_xlim()[0]
    for direction, start, stop, colour in _arrows(rows):
        values = [_read(node, direction, metric) for node in (start, stop)]
        gone = not all(map(_is_drawn, values))
        if None in values or (gone and not show_zero):
            continue
        tail, head = (
            (x if _is_drawn(x) else left, rows[node])
            for x, node in zip(values, (start, stop), strict=True)
        )
        style = {"arrowstyle": "->", "color": colour}
        text = "0" if gone else ""
        axes.annotate(text, xy=head, xytext=tail, color=colour, va="center", arrowprops=style)


def _arrows(rows: dict[fx.Node, int]) -> Iterator[tuple[str, fx.Node, fx.Node, str]]:
    for node in rows:
        for argument in node.all_input_nodes:
            yield "fwd", argument, node, _DIRECTIONS[0][2]
            yield "bwd", node, argument, _DIRECTIONS[1][2]


def _read(node: fx.Node, direction: str, metric: str) -> float | None:
    data = getattr(node.meta["metrics"], direction)
    return None if data is None else float(getattr(data, metric))


def _is_drawn(value: float | None) -> bool:
    """Whether a value has a place on a logarithmic axis."""
    return value is not None and isfinite(value) and value > 0


def _short_name(name: str) -> str:
    return re.sub(r"(^|_)\d+|self_|transformer_h_|transformer_", "", name)
