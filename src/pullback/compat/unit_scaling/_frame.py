"""`graph_to_dataframe`: the metrics of a tracked graph as a pandas table."""

from typing import Any

from torch import fx

from pullback.compat.unit_scaling._metrics import Metrics
from pullback.internal._extras import require

__all__ = ["graph_to_dataframe"]


def _rows(g: fx.Graph) -> list[list[Any]]:
    """Return a row for each floating value and direction; needs no pandas."""
    table = []
    for node in g.nodes:
        if node.op == "output" or "metrics" not in node.meta:
            continue
        weight = node.meta["requires_grad"]
        for direction in ("fwd", "bwd"):
            data = getattr(node.meta["metrics"], direction)
            kind = ("" if direction == "fwd" else "grad_") + ("w" if weight else "x")
            numbers = [None if data is None else getattr(data, name) for name in Metrics.names()]
            table.append([node.meta["clean_name"], weight, direction, kind, *numbers])
    return table


def graph_to_dataframe(g: fx.Graph) -> Any:
    """Return the metrics of a tracked graph as a ``pandas.DataFrame``.

    Arguments:
        g: from ``scales_graph()``, pruned or not.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    pandas = require("pandas", extra="pandas", purpose="graph_to_dataframe")
    columns = ["layer", "weight tensor", "direction", "tensor type", *Metrics.full_names()]
    return pandas.DataFrame(_rows(g), columns=columns)
