"""What may have been meant by a dimension where a rule is handed more of them, or fewer."""

import ast
from collections.abc import Iterator
from typing import Any

from pullback.conformance.source._written import Edit, Expression, Written

__all__ = ["from_the_end"]


def from_the_end(rule: Written) -> Iterator[Edit]:
    """Dimensions counted from the end, all of a number or one: those of more dimensions, too.

    Of a row of them one alone would meet another; all that are summed over are all but the last.
    """
    dims: dict[int, list[Expression]] = {}
    for node in rule.nodes(ast.Constant):
        if type(node.value) is int and node.value >= 0:
            around: Any = rule.parent[node]
            of = rule.text(around.value) if isinstance(around, ast.Subscript) else ""
            alone = isinstance(around, ast.Tuple) and len(around.elts) == 1
            if of.endswith("shape") or alone or isinstance(around, (ast.Call, ast.keyword)):
                dims.setdefault(node.value, []).append(Expression(rule, node))
    for places in dims.values():
        for some in (places, *([place] for place in places)):
            yield from (dict.fromkeys(some, dim) for dim in ("-1", "-2"))
    if several := dict(_leading(rule)):
        yield several
    for node in rule.nodes(ast.Attribute):
        if node.attr == "T":
            yield {Expression(rule, node): f"{rule.text(node.value)}.mT"}


def _leading(rule: Written) -> Iterator[tuple[Expression, str]]:
    """What is reduced over several leading dimensions, over all but the last."""
    for node in rule.nodes(ast.Tuple):
        dims = [e.value for e in node.elts if isinstance(e, ast.Constant)]
        around: Any = rule.parent[node]
        match rule.parent[around] if isinstance(around, ast.keyword) else around:
            case ast.Call(func=ast.Attribute(value=of)) if dims == [*range(len(node.elts))]:
                yield Expression(rule, node), f"tuple(range({rule.atom(of)}.ndim - 1))"
