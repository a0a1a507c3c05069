"""Pruning of tracked graphs: copies without the nodes that say little."""

import copy
from collections.abc import Iterable
from math import isclose
from typing import Any

from torch import fx

from pullback.compat.unit_scaling._metrics import Metrics
from pullback.errors import ArgumentError

__all__ = ["prune_non_float_tensors", "prune_same_scale_tensors", "prune_selected_nodes"]


def prune_non_float_tensors(graph: fx.Graph) -> fx.Graph:
    """Return a copy of a tracked graph without the nodes that give no floating tensor.

    What used such a node uses its one floating argument instead, or ``None``.

    Arguments:
        graph: from ``scales_graph()``.

    Raises:
        ArgumentError: the graph was not tracked.
    """
    _check_tracked(graph)
    pruned = copy.deepcopy(graph)
    for node in list(pruned.nodes):
        if node.op != "output" and not node.meta.get("outputs_float_tensor", False):
            floating = _floating_arguments(node)
            _remove(node, floating[0] if len(floating) == 1 else None)
    pruned.lint()
    return pruned


def prune_same_scale_tensors(graph: fx.Graph, rtol: float = 2**-16) -> fx.Graph:
    """Return a copy of a tracked graph without nodes that have the scale of their argument.

    Nodes with no or several floating arguments stay.

    Arguments:
        graph: from ``scales_graph()``.
        rtol: the relative difference of the mean absolute value that still counts as the same.

    Raises:
        ArgumentError: the graph was not tracked.
    """
    _check_tracked(graph)
    pruned = copy.deepcopy(graph)
    for node in list(pruned.nodes):
        if node.op == "output" or not node.meta.get("outputs_float_tensor", False):
            continue
        floating = _floating_arguments(node)
        if len(floating) == 1 and _same_scale(
            node.meta["metrics"], floating[0].meta["metrics"], rtol
        ):
            _remove(node, floating[0])
    pruned.lint()
    return pruned


def prune_selected_nodes(graph: fx.Graph, targets: Iterable[Any]) -> fx.Graph:
    """Return a copy of a graph without the nodes of some targets; their users get ``None``.

    Arguments:
        graph: any graph.
        targets: the functions, or names, of the nodes to remove.
    """
    pruned = copy.deepcopy(graph)
    wanted = list(targets)
    for node in list(pruned.nodes):
        if node.op != "output" and node.target in wanted:
            _remove(node, None)
    pruned.lint()
    return pruned


def _check_tracked(graph: fx.Graph) -> None:
    if any("clean_name" not in node.meta for node in graph.nodes):
        raise ArgumentError(
            "The graph carries no metrics.",
            given="a graph that was not tracked, or not run",
            expected="track_scales(module).scales_graph() after a forward",
        )


def _floating_arguments(node: fx.Node) -> list[fx.Node]:
    return [
        argument
        for argument in node.args
        if isinstance(argument, fx.Node) and argument.meta.get("outputs_float_tensor", False)
    ]


def _remove(node: fx.Node, replacement: fx.Node | None) -> None:
    for user in list(node.users):
        user.args = fx.map_arg(user.args, lambda used: replacement if used is node else used)
        user.kwargs = fx.map_arg(user.kwargs, lambda used: replacement if used is node else used)
    node.graph.erase_node(node)


def _same_scale(one: Metrics, other: Metrics, rtol: float) -> bool:
    if (one.bwd is None) != (other.bwd is None):
        return False
    if not isclose(one.fwd.mean_abs, other.fwd.mean_abs, rel_tol=rtol):
        return False
    if one.bwd is None or other.bwd is None:
        return True
    return isclose(one.bwd.mean_abs, other.bwd.mean_abs, rel_tol=rtol)
