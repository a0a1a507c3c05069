"""What may have been meant by a statement that writes: added for written, another sign."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from pullback.conformance.source._names import Rewrite
from pullback.conformance.source._slips import out_of_place
from pullback.conformance.source._watch import Watch
from pullback.conformance.source._written import Expression, Written

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
    for node in rule.nodes(ast.stmt):
        if rule.key(node) in noted.scopes:
            for rank, text in (*_others(rule, node, noted), *_repeated(rule, node, noted)):
                yield Rewrite(rank, {Expression(rule, node): text}, anew=True)
    for node in rule.nodes(ast.Call, ast.stmt):
        for text in out_of_place(rule, node):
            yield Rewrite(0, {Expression(rule, node): text}, anew=True)


def _repeated(rule: Written, node: ast.stmt, noted: Watch) -> Iterator[tuple[int, str]]:
    """What is added to something, added once more of a name that nobody reads: a term forgotten."""
    match node:
        case ast.AugAssign(op=ast.Add() | ast.Sub(), value=term):
            pass
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name), args=[*_, term])):
            if not name.endswith("_") or not ("add" in name or "sub" in name):
                return
        case _:
            return
    scope, text = noted.scopes[rule.key(node)], rule.text(node)
    for name in sorted(rule.unread & scope.keys()):
        for n in ast.walk(node):
            if isinstance(n, ast.Name) and _are_alike(scope.get(n.id), scope[name]):
                yield 3, f"{text}; {rule.spliced({n: name}, node)}"
                inside = n in {*ast.walk(term)}
                added = rule.spliced({n: name} if inside else {}, term)
                minus = f"-({added})" if isinstance(term, (ast.BinOp, ast.UnaryOp)) else f"-{added}"
                texts = {term: minus} | ({} if inside else {n: name})
                yield 3, f"{text}; {rule.spliced(texts, node)}"


def _are_alike(one: Any, other: Any) -> bool:
    both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    return both and one.shape == other.shape and one.dtype == other.dtype


def _others(rule: Written, node: ast.stmt, noted: Watch) -> Iterator[tuple[int, str]]:
    text = rule.text
    match node:
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in _SIGNS:
            old, near = _SIGNS[type(op)], {"+=", "-="}
            for sign in (*_SIGNS.values(), "="):
                if sign != old:
                    rank = 1 if {old, sign} == near else 3
                    yield rank, f"{text(target)} {sign} {text(value)}"
            if isinstance(target, ast.Subscript) and old == "+=":
                yield from _gathered(rule, target, value, noted)
        case ast.Assign(targets=[ast.Subscript() as target, *_], value=value):
            yield from ((3, f"{text(target)} {sign} {text(value)}") for sign in ("+=", "-="))
            yield from _gathered(rule, target, value, noted)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=of, attr=name) as called) as call):
            for other in [n for some in _IN_PLACE if name in some for n in some if n != name]:
                yield 2, rule.spliced({called: f"{text(of)}.{other}"}, call)


def _gathered(rule: Written, target: Any, value: Any, noted: Watch) -> Iterator[tuple[int, str]]:
    """All that goes to one place added up: where an index names it twice, ``+=`` adds once."""
    parts: Sequence[Any] = getattr(target.slice, "elts", [target.slice])
    index = [noted.first.get(rule.key(part)) for part in parts]
    if any(isinstance(i, torch.Tensor) and i.dtype == torch.int64 for i in index):
        where, of = f"({', '.join(map(rule.text, parts))},)", rule.text(target.value)
        yield 3, f"{of}.index_put_({where}, {rule.text(value)}, accumulate=True)"
