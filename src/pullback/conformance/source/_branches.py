"""What a rule computes otherwise where a branch is taken that was not.

An edit behind two branches that join may undo what is wrong in the one that was run, and is wrong
then for the other one.
"""

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pullback.conformance.source._watch import Watch
from pullback.conformance.source._written import Expression, Written, names_read
from pullback.internal._syntax import parse

__all__ = ["branch_not_run"]


def branch_not_run(e: Expression, text: str, noted: Watch) -> int:
    """The line whose other branch would give another value to what an edit reads; 0 if none.

    Arguments:
        e: the expression, or the statement, that is edited.
        text: what is written there.
        noted: the run of the rule as it is.
    """
    lines = _joined(e, noted)
    read = names_read(e.node)
    with suppress(SyntaxError):
        read |= names_read(parse(text.strip()))
    within = [n for n in ast.walk(e.node) if isinstance(n, ast.IfExp)]
    apart = [n.lineno for n in within if not _are_run(e.rule, n, noted)]
    found = next(iter([*apart, *(lines[name] for name in read if name in lines)]), 0)
    return found and e.rule.line + found - 1


def _joined(e: Expression, noted: Watch) -> Mapping[str, int]:
    """The names that a branch gives a value, and one that was not run another value; the lines.

    But for branches that the expression itself is in.
    """
    found: dict[str, int] = {}
    rule = e.rule
    for node in rule.nodes(ast.If, ast.IfExp):
        if not node.orelse or e.node in {*ast.walk(node)} or _are_run(rule, node, noted):
            continue
        if isinstance(node, ast.IfExp):
            bound = _bound([rule.statement(node)])
        else:
            bound = _bound(node.body) & _bound(node.orelse)
        found |= dict.fromkeys(bound, node.lineno)
    simple = rule.nodes(ast.Assign, ast.AugAssign) if found else []
    for node in sorted(simple, key=lambda n: n.lineno):
        line = next((found[name] for name in names_read(node) if name in found), 0)
        found |= dict.fromkeys(_bound([node]) - found.keys(), line) if line else {}
    return found


def _are_run(rule: Written, node: Any, noted: Watch) -> bool:
    """Whether both branches were run; neither counts where the node itself was not reached."""
    if isinstance(node, ast.If):
        ran = [rule.key(block[0]) in noted.scopes for block in (node.body, node.orelse)]
    else:
        parts = (node.body, node.orelse)
        if any(getattr(part, "value", part) is None for part in parts):
            return True  # no other value
        ran = [any(rule.key(n) in noted.first for n in ast.walk(part)) for part in parts]
    return any(ran) == all(ran)


def _bound(statements: Sequence[Any]) -> set[str]:
    """The names that statements bind, or write into."""
    nodes = [n for statement in statements for n in ast.walk(statement)]
    stored = [n for n in nodes if isinstance(getattr(n, "ctx", None), ast.Store)]
    bases = [n.value if isinstance(n, ast.Subscript) else n for n in stored]
    return {n.id for n in bases if isinstance(n, ast.Name)}
