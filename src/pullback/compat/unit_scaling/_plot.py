"""`plot`: the scales of a tracked graph as a picture."""

import re
from math import isfinite
from typing import Any

from torch import fx

from pullback.compat.unit_scaling._metrics import Metrics
from pullback.compat.unit_scaling._prune import prune_non_float_tensors, prune_same_scale_tensors
from pullback.errors import ArgumentError
from pullback.internal._extras import require

__all__ = ["plot"]

_COLOURS = {"fwd": "#0173b2", "bwd": "#de8f05"}
_LABELS = {"fwd": "forward pass", "bwd": "backward pass"}
_SHIFT = {"fwd": -0.1, "bwd": 0.1}
_LIMITS = (
    (2.0**-14, "FP16 min,\nFP8 E5 min\n(normal)", (3, 1)),
    (2.0**-7, "FP8 E4 min\n(normal)", (1, 3)),
    (240.0, "FP8 E4 max", (1, 3)),
    (2.0**16, "FP16 max,\nFP8 E5 max", (3, 1)),
)


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
    if metric not in Metrics.names() + Metrics.full_names():
        raise ArgumentError(
            "There is no such metric.",
            given=f"metric={metric!r}",
            expected=", ".join(Metrics.names()),
        )
    short = dict(zip(Metrics.full_names(), Metrics.names(), strict=True)).get(metric, metric)
    pyplot = require("matplotlib.pyplot", extra="plot", purpose="plot")
    g = prune_non_float_tensors(g)
    if prune_same_scale:
        g = prune_same_scale_tensors(g)
    nodes = [node for node in g.nodes if node.op != "output"]
    places = {node: place for place, node in enumerate(nodes)}
    _, axes = pyplot.subplots(figsize=(10, max(len(nodes) / 4, 2)))
    axes.set_xscale("log", base=2)
    _draw_points(axes, nodes, places, short)
    _draw_limits(axes, len(nodes))
    low, high = axes.get_xlim()
    axes.set_xlim(low if xmin is None else xmin, high if xmax is None else xmax)
    if show_error_bars:
        _draw_bars(axes, nodes, places)
    if show_arrows:
        _draw_arrows(axes, nodes, places, short, show_zero_tensors)
    _label(axes, nodes, Metrics.get_full_name(short), title)
    return axes


def _value(node: fx.Node, direction: str, metric: str) -> float | None:
    data = getattr(node.meta["metrics"], direction)
    return None if data is None else float(getattr(data, metric))


def _draw_points(axes: Any, nodes: list[fx.Node], places: dict[fx.Node, int], metric: str) -> None:
    for direction in ("fwd", "bwd"):
        for weight, marker in ((False, "."), (True, "v")):
            points = [
                (value, places[node])
                for node in nodes
                if node.meta["requires_grad"] == weight
                and (value := _value(node, direction, metric)) is not None
                and isfinite(value)
                and value > 0
            ]
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                linestyle="",
                marker=marker,
                markersize=9,
                color=_COLOURS[direction],
                label=f"{_LABELS[direction]}, {'' if weight else 'non-'}weight tensor",
            )


def _draw_limits(axes: Any, height: int) -> None:
    for x, text, dashes in _LIMITS:
        axes.axvline(x, color="grey", dashes=dashes)
        axes.text(x, height + 0.2, text, ha="center", va="top", size=9)


def _draw_bars(axes: Any, nodes: list[fx.Node], places: dict[fx.Node, int]) -> None:
    for node in nodes:
        for direction in ("fwd", "bwd"):
            low, high = (_value(node, direction, name) for name in ("abs_min", "abs_max"))
            if low is None or high is None or not isfinite(low) or not isfinite(high) or high <= 0:
                continue
            left = max(low, axes.get_xlim()[0])
            y = places[node] + _SHIFT[direction]
            style = {"color": _COLOURS[direction], "alpha": 0.35, "linewidth": 1, "zorder": 1}
            axes.hlines(y, left, high, **style)
            axes.vlines([left, high], y - 0.2, y + 0.2, **style)


def _draw_arrows(
    axes: Any,
    nodes: list[fx.Node],
    places: dict[fx.Node, int],
    metric: str,
    show_zero_tensors: bool,
) -> None:
    edge = axes.get_xlim()[0]
    for node in nodes:
        for argument in node.all_input_nodes:
            for direction in ("fwd", "bwd"):
                ends = [argument, node] if direction == "fwd" else [node, argument]
                values = [_value(end, direction, metric) for end in ends]
                if None in values:
                    continue
                known = [value for value in values if value is not None]
                gone = any(value == 0 or not isfinite(value) for value in known)
                if gone and not show_zero_tensors:
                    continue
                start, stop = (
                    (value if value > 0 and isfinite(value) else edge, places[end])
                    for value, end in zip(known, ends, strict=True)
                )
                axes.annotate(
                    "0" if gone else "",
                    xy=stop,
                    xytext=start,
                    color=_COLOURS[direction],
                    va="center",
                    arrowprops={"arrowstyle": "->", "color": _COLOURS[direction]},
                )


def _label(axes: Any, nodes: list[fx.Node], metric: str, title: str) -> None:
    axes.set_ylim(len(nodes), -1)
    axes.set_yticks(range(len(nodes)))
    axes.set_yticklabels([_short_name(node.meta["clean_name"]) for node in nodes])
    axes.set_ylabel("layer")
    axes.set_xlabel(metric)
    axes.xaxis.set_ticks_position("top")
    axes.xaxis.set_label_position("top")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="upper right")
    if title:
        axes.set_title(title, fontweight="bold")


def _short_name(name: str) -> str:
    name = re.sub(r"(^|_)\d+", "", name)
    for part in ("self_", "transformer_h_", "transformer_"):
        name = name.replace(part, "")
    return name
