"""Graphs of the tape: nodes and edges, and how to look at them."""

from pullback.tape._context import saved_variables_hooks
from pullback.tape._node import GradientEdge, Node, get_gradient_edge
from pullback.tape._picture import from_json, summary, to_dot, to_json

__all__ = [
    "GradientEdge",
    "Node",
    "from_json",
    "get_gradient_edge",
    "saved_variables_hooks",
    "summary",
    "to_dot",
    "to_json",
]
