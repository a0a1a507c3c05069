"""Edits that nobody means: whatever they make right, they make it so for nothing."""

import ast
import itertools
from contextlib import suppress

from pullback.conformance.source._written import Edit
from pullback.internal._syntax import parse

__all__ = ["is_vain"]

# Of anything with itself they are known beforehand.
_OF_TWO = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod)
_CALLS_OF_TWO = ("sub", "div", "gt", "ge", "lt", "le", "eq", "ne")


def is_vain(edit: Edit) -> bool:
    """Whether it compares or divides something by itself, or writes into what nobody reads.

    What comes out is a number that is known beforehand, or nothing: that is never what was meant.
    """
    for rule in {e.rule for e in edit}:
        own = {e.node: text for e, text in edit.items() if e.rule is rule}
        texts = {n: f"({t})" if isinstance(n, ast.expr) else t for n, t in own.items()}
        with suppress(SyntaxError):
            tree = parse(rule.spliced(texts))
            if not _with_itself(tree) <= _with_itself(rule.tree) or _is_lost(tree):
                return True
    return False


def _is_lost(tree: ast.AST) -> bool:
    """Whether it writes into an entry of what was computed for that alone."""
    for node in ast.walk(tree):
        whole = node if isinstance(getattr(node, "ctx", None), ast.Store) else None
        while isinstance(whole, (ast.Subscript, ast.Attribute, ast.Call)):
            whole = whole.func if isinstance(whole, ast.Call) else whole.value
        if isinstance(whole, (ast.BinOp, ast.UnaryOp, ast.Compare)):
            return True
    return False


def _with_itself(tree: ast.AST) -> set[str]:
    """What is compared with itself, subtracted from itself, or divided by itself."""
    found = set()
    for node in ast.walk(tree):
        operands: list[ast.expr] = []
        match node:
            case ast.Compare(left=left, comparators=others):
                operands = [left, *others]
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OF_TWO):
                operands = [left, right]
            case ast.Call(func=ast.Attribute(value=of, attr=name), args=args):
                operands = [of, *args] if name.strip("_") in _CALLS_OF_TWO else []
        pairs = itertools.pairwise(map(ast.dump, operands))
        found |= {one for one, other in pairs if one == other}
    return found
