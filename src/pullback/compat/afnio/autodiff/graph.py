"""Nodes and edges of a graph."""

from pullback.tape.graph import GradientEdge, Node, get_gradient_edge

__all__ = ["GradientEdge", "Node", "get_gradient_edge"]
