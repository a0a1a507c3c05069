"""What may have been meant by a statement that writes: added for written, another sign."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from pullback.conformance._place import Rewrite
from pullback.conformance._slips import out_of_place
from pullback.conformance._watch import Watch
from pullback.conformance._written import Expression, Written

__all__ = ["statements"]

_SIGNS: Mapping[type[ast.operator], str] = {
    ast.Add: "+=", ast.Sub: "-=", ast.Mult: "*=", ast.Div: "/=",
}  # fmt: skip
# Of operations in place, one may be meant for another one.
_IN_PLACE = (
    ("add_", "sub_"), ("mul_", "div_"), ("index_add_", "index_copy_"), ("scatter_add_", "scatter_"),
)  # fmt: skip


def statements(rule: Written, noted: Watch) -> Iterator[Rewrite]:
    """Other statements in the place of one that has run."""
    for node in ast.walk(rule.tree):
        if isinstance(node, ast.stmt) and rule.key(node) in noted.scopes:
            for rank, text in _others(rule, node, noted):
                yield _rewrite(rank, rule, node, text)
            for text in _repeated(rule, node, noted):
                yield _rewrite(3, rule, node, text)
    for node in rule.nodes(ast.Call, ast.stmt):
        yield from (_rewrite(0, rule, node, text) for text in out_of_place(rule, node))


def _rewrite(rank: int, rule: Written, node: Any, text: str) -> Rewrite:
    return Rewrite(rank, {Expression(rule, node): text}, anew=True)


def _repeated(rule: Written, node: ast.stmt, noted: Watch) -> Iterator[str]:
    """What is added to something, added once more of a name that nobody reads: a term forgotten."""
    scope, text = noted.scopes[rule.key(node)], rule.text(node)
    adds = isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub))
    call = node.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    if call is not None and isinstance(call.func, ast.Attribute) and call.args:
        adds = any(part in call.func.attr for part in ("add", "sub")) and call.func.attr[-1] == "_"
    term: Any = call.args[-1] if call is not None and adds else getattr(node, "value", None)
    for name in sorted(rule.unread & scope.keys()) if adds else ():
        for n in ast.walk(node):
            if isinstance(n, ast.Name) and _are_alike(scope.get(n.id), scope[name]):
                yield f"{text}; {rule.spliced({n: name}, node)}"
                inside = n in {*ast.walk(term)}
                added = rule.spliced({n: name} if inside else {}, term)
                minus = f"-({added})" if isinstance(term, (ast.BinOp, ast.UnaryOp)) else f"-{added}"
                yield f"{text}; {rule.spliced({term: minus} | ({} if inside else {n: name}), node)}"


def _are_alike(one: Any, other: Any) -> bool:
    both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    return both and one.shape == other.shape and one.dtype == other.dtype


def _others(rule: Written, node: ast.stmt, noted: Watch) -> Iterator[tuple[int, str]]:
    text = rule.text
    if isinstance(node, ast.AugAssign) and type(node.op) in _SIGNS:
        old, near = _SIGNS[type(node.op)], ("+=", "-=")
        for sign in (*_SIGNS.values(), "="):
            rank = 1 if old in near and sign in near else 3
            yield from [(rank, f"{text(node.target)} {sign} {text(node.value)}")] * (sign != old)
        if isinstance(node.target, ast.Subscript) and old == "+=":
            yield from _gathered(rule, node.target, node.value, noted)
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        target = text(node.targets[0])
        yield from ((3, f"{target} {sign} {text(node.value)}") for sign in ("+=", "-="))
        yield from _gathered(rule, node.targets[0], node.value, noted)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _in_place(rule, node.value)


def _gathered(rule: Written, target: Any, value: Any, noted: Watch) -> Iterator[tuple[int, str]]:
    """All that goes to one place added up: where an index names it twice, ``+=`` adds once."""
    parts: Sequence[Any] = (
        target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
    )
    index = [noted.first.get(rule.key(part)) for part in parts]
    if any(isinstance(i, torch.Tensor) and i.dtype == torch.int64 for i in index):
        where = f"({', '.join(map(rule.text, parts))},)"
        of = rule.text(target.value)
        yield 3, f"{of}.index_put_({where}, {rule.text(value)}, accumulate=True)"


def _in_place(rule: Written, node: ast.Call) -> Iterator[tuple[int, str]]:
    if isinstance(node.func, ast.Attribute):
        owner, name = rule.text(node.func.value), node.func.attr
        for others in _IN_PLACE:
            for other in others if name in others else ():
                if other != name:
                    yield 2, rule.spliced({node.func: f"{owner}.{other}"}, node)
