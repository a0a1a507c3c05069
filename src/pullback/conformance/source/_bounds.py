"""Where a rule bounds numbers: a bound that is meant makes a gradient wrong, and hides a slip."""

import ast
from collections.abc import Iterable
from typing import Any

import torch

from pullback.conformance.source._watch import Watch
from pullback.conformance.source._written import Edit, Expression

__all__ = ["without_bounds"]

_BOUNDING = ("clamp", "clip", "clamp_min", "clamp_max", "hardtanh", "nan_to_num")


def without_bounds(expressions: Iterable[Expression], noted: Watch) -> Edit:
    """What is bounded in the place of each expression that bounds real numbers as they are."""
    return {e: text for e in expressions if (text := _bounded(e, noted))}


def _bounded(e: Expression, noted: Watch) -> str:
    match e.node:
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=args) if name in _BOUNDING:
            for node in (owner, *args[:1]):  # of a tensor, or of a function of torch's
                pair: list[Any] = [noted.first.get(e.rule.key(n)) for n in (node, e.node)]
                if all(isinstance(v, torch.Tensor) and v.is_floating_point() for v in pair):
                    return e.rule.atom(node)
    return ""
