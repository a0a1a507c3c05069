"""The names of ``unit_scaling.analysis``; see `pullback.compat.unit_scaling`."""

import re
from math import isfinite
from typing import Any

from torch import fx

from pullback.compat.unit_scaling.transforms import (
    prune_non_float_tensors,
    prune_same_scale_tensors,
)
from pullback.errors import ArgumentError
from pullback.internal._arguments import checked
from pullback.internal._extras import require

__all__ = ["plot"]

_WORDS = {
    "mean_abs": "mean absolute value",
    "abs_mean": "absolute mean value",
    "std": "standard deviation",
    "abs_max": "absolute maximum",
    "abs_min": "absolute minimum",
    "numel": "number of elements",
}
# Of a direction: the attribute of Metrics, its words, and a colour.
_DIRECTIONS = (("fwd", "forward", "#0173b2"), ("bwd", "backward", "#de8f05"))
_LIMITS = {
    2.0**-14: "FP16 min,\nFP8 E5 min\n(normal)",
    2.0**-7: "FP8 E4 min\n(normal)",
    240.0: "FP8 E4 max",
    2.0**16: "FP16 max,\nFP8 E5 max",
}


@checked
def plot(
    g: fx.Graph,
    title: str = "",
    metric: str = "mean_abs",
    prune_same_scale: bool = True,
    xmin: float | None = None,
    xmax: float | None = None,
) -> Any:
    """Draw the scales of a tracked graph, one line for each value, on a log2 axis.

    Arguments:
        g: from ``scales_graph()``.
        title: the title.
        metric: an attribute of `Metrics.Data`, or its name in words.
        prune_same_scale: leave out what has the scale of its argument, like reshapes.
        xmin: the left end of the axis.
        xmax: the right end of the axis.

    Returns:
        The ``matplotlib.axes.Axes``.

    Raises:
        ArgumentError: an unknown metric, or a graph that was not tracked.
        MissingExtraError: matplotlib is not installed.
    """
    short = next((name for name, words in _WORDS.items() if metric in (name, words)), None)
    if short is None:
        raise ArgumentError(
            "There is no such metric.", given=repr(metric), expected=", ".join(_WORDS)
        )
    pyplot = require("matplotlib.pyplot", extra="plot", purpose="plot")
    g = prune_non_float_tensors(g)
    g = prune_same_scale_tensors(g) if prune_same_scale else g
    nodes = [node for node in g.nodes if node.op != "output"]
    _, axes = pyplot.subplots(figsize=(10, max(len(nodes) / 4, 2)))
    axes.set_xscale("log", base=2)
    for direction, spelt, colour in _DIRECTIONS:
        for weight, marker in ((False, "."), (True, "v")):
            points = [
                (getattr(data, short), row)
                for row, node in enumerate(nodes)
                if node.meta["requires_grad"] == weight
                and (data := getattr(node.meta["metrics"], direction)) is not None
            ]
            # Of what is zero, or not finite, a logarithmic axis has no place.
            points = [(x, row) for x, row in points if isfinite(x) and x > 0]
            label = f"{spelt} pass, {'' if weight else 'non-'}weight tensor"
            xs, ys = [x for x, _ in points], [row for _, row in points]
            axes.plot(xs, ys, marker, markersize=9, color=colour, label=label)
    for x, text in _LIMITS.items():
        axes.axvline(x, color="grey", linestyle="--", linewidth=1)
        axes.text(x, len(nodes) + 0.2, text, ha="center", va="top", size=9)
    low, high = axes.get_xlim()
    axes.set_xlim(low if xmin is None else xmin, high if xmax is None else xmax)
    axes.set(ylim=(len(nodes), -1), ylabel="layer", xlabel=_WORDS[short])
    axes.set_title(title)
    axes.set_yticks(range(len(nodes)), [_short_name(node.meta["clean_name"]) for node in nodes])
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="upper right")
    return axes


def _short_name(name: str) -> str:
    return re.sub(r"(^|_)\d+|self_|transformer_h_|transformer_", "", name)
