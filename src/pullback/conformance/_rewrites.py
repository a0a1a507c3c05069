"""What may have been meant in the place of an expression: slips of a hand-written rule, undone.

The operators are those of program repair by mutation (Le Goues et al., "GenProg", IEEE
Transactions on Software Engineering 38, 2012) over what a derivative is made of: signs, factors,
terms, operands, dimensions, numbers. Each is a text in the author's own names, evaluated where it
would stand.
"""

import ast
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from pullback.conformance._arguments import is_continuous
from pullback.conformance._names import Name, along, is_number, is_size
from pullback.conformance._place import Place, Rewrite, is_flag, is_plain, turned
from pullback.conformance._shape_rewrites import arranged_otherwise
from pullback.conformance._tensor_rewrites import of_a_tensor
from pullback.conformance._watch import Watch
from pullback.conformance._written import Expression, Written, names_in
from pullback.internal._sparse import is_sparse

__all__ = ["rewrites"]

_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_LOGICAL = {ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^"}
_COMPARISONS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
# One of these may be meant for another one.
_FUNCTIONS = (
    ("sin", "cos"), ("sinh", "cosh", "tanh", "sigmoid"), ("exp", "log", "expm1", "log1p"),
    ("sqrt", "rsqrt", "square", "reciprocal"), ("abs", "sign", "relu"), ("sum", "mean"),
    ("maximum", "minimum"), ("logical_and", "logical_or", "logical_xor"), ("amax", "amin"),
    ("clamp_min", "clamp_max"),
    ("cumsum", "cumprod"), ("argmax", "argmin"), ("ceil", "floor", "round"),
    ("real", "imag"), ("scatter", "scatter_add"),
    ("index_copy", "index_add"), ("numel", "sum", "count_nonzero"),
)  # fmt: skip
_REDUCTIONS = ("sum", "mean")
# Of what torch's functions take by name, one for another.
_TEXTS = (
    ("sum", "mean", "prod", "amax", "amin"), ("forward", "backward", "ortho"),
    ("zeros", "border", "reflection"), ("constant", "reflect", "replicate", "circular"),
    ("nearest", "linear", "bilinear", "bicubic", "trilinear"), ("full", "same", "valid"),
)  # fmt: skip
_ENDS = {"min": "max", "max": "min"}  # of a clamp
_MOST = 4  # dimensions of which every choice is tried


def rewrites(
    expression: Expression,
    noted: Watch,
    names: Sequence[Name],
    numbers: Sequence[Name],
    rules: Collection[Written],
) -> Iterator[Rewrite]:
    """Every other expression that may be meant there, but for factors that are numbers.

    Arguments:
        expression: the expression.
        noted: the run of the rule as it is.
        names: what it may name.
        numbers: the numbers among them, and sizes.
        rules: the functions of the author's that run.
    """
    value = noted.first[expression.key]
    place = Place(expression, value, noted, names, numbers, rules)
    yield from _BY_NODE.get(type(expression.node), _nothing)(place)
    if value is None:
        yield from (place.to(3, n.text) for n in place.tensors() if is_continuous(n.value))
    elif isinstance(value, tuple) and place.e.is_whole:
        yield from _reordered(place)
    elif type(value) is bool:
        yield from _flags(place)
    elif is_number(value):
        yield from _numbers(place)
    elif type(value) is str:
        yield from _texts(place)
    elif is_plain(value):
        yield from of_a_tensor(place)
    elif is_sparse(value) and value.ndim == 2:
        yield place.to(3, f"{place.e.atom}.t()")
    elif place.e.is_looped:
        yield from _from_the_end(place)


def _reordered(place: Place) -> Iterator[Rewrite]:
    """Several values that are taken apart, two of them exchanged."""
    text, tensors = place.e.atom, [k for k, v in enumerate(place.value) if is_plain(v)]
    for one, other in itertools.combinations(tensors, 2):
        order = {one: other, other: one}
        parts = [f"{text}[{order.get(k, k)}]" for k in range(len(place.value))]
        yield place.to(2, f"{text}[::-1]" if len(parts) == 2 else ", ".join(parts))


def _from_the_end(place: Place) -> Iterator[Rewrite]:
    """A loop in the other order: an adjoint runs back through the steps of forward."""
    node, text = place.e.node, place.e.rule.text
    if names_in(getattr(node, "func", node)) == ["reversed"]:
        yield place.to(2, text(node.args[0]))
    elif isinstance(place.value, (range, list, tuple)):
        yield place.to(2, f"reversed({text(node)})")


def _nothing(place: Place) -> Iterator[Rewrite]:
    yield from ()


def _negated(place: Place) -> Iterator[Rewrite]:
    if isinstance(place.e.node.op, ast.USub):
        yield place.to(1, place.e.rule.text(place.e.node.operand))


def _flags(place: Place) -> Iterator[Rewrite]:
    """The contrary; of a comparison its own rewrites hold it."""
    node = place.e.node
    if isinstance(node, ast.Constant):
        yield place.to(1, f"{not place.value}")
    elif isinstance(node, ast.UnaryOp):
        yield place.to(1, place.e.rule.text(node.operand))
    elif not isinstance(node, (ast.Compare, ast.BoolOp)):
        of_another = is_flag(place.e) or getattr(node, "attr", "") == "requires_grad"
        yield place.to(5 if of_another else 1, f"not {place.e.atom}")  # that is likelier


def _texts(place: Place) -> Iterator[Rewrite]:
    """Another text that is known to whatever takes it: the author's functions ask for theirs."""
    asked = (*_TEXTS, *_FUNCTIONS, *(rule.compared for rule in place.rules))
    known = [text for texts in asked if place.value in texts for text in texts]
    yield from (place.to(1, repr(text)) for text in dict.fromkeys(known) if text != place.value)


def _of_several(place: Place) -> Iterator[Rewrite]:
    node = place.e.node
    yield from _exchanged(
        place, [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.elts
    )


def _operators(place: Place) -> Iterator[Rewrite]:
    """Another operator, its operands exchanged, one of them alone."""
    node, rule = place.e.node, place.e.rule
    kind, left, right = type(node.op), rule.text(node.left), rule.text(node.right)
    table = next((t for t in (_LOGICAL, _ARITHMETIC) if kind in t), {})
    for other, sign in table.items():
        if other is not kind:
            near = {kind, other} <= {ast.Add, ast.Sub} or table is _LOGICAL
            rank = 1 if near else 2 if {kind, other} <= {ast.Mult, ast.Div} else 4
            yield place.to(rank, _signed(place, node.left, table[kind], sign))
    if any(isinstance(place.known(n), (int, torch.Tensor)) for n in (node.left, node.right)):
        for kept, dropped in ((node.left, node.right), (node.right, node.left)):
            rank = 3 if isinstance(kept, ast.Constant) else 2 - is_number(place.known(dropped))
            yield place.to(rank, rule.atom(kept))
    if kind is ast.Add and isinstance(place.value, (tuple, list)):
        yield from _exchanged(place, [*_summed(node)])
    if kind in (ast.Sub, ast.Div, ast.MatMult):
        yield place.to(3, place.written({node.left: right, node.right: left}))
        atoms = {n: f"({rule.text(n)})" for n in (node.left, node.right)}
        yield place.to(
            3, place.written({node.left: atoms[node.right], node.right: atoms[node.left]})
        )
    if kind is ast.MatMult:
        one, two = rule.atom(node.left), rule.atom(node.right)
        for first, second in ((one, two), (two, one)):
            for left, right in itertools.product((first, turned(first)), (second, turned(second))):
                yield place.to(4, f"{left} @ {right}")
        inner = node.left
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.MatMult):  # a change of basis
            outer = {n: turned(rule.atom(n)) for n in (inner.left, node.right)}
            yield place.to(4, place.written(outer))
    if kind is ast.Pow and is_number(place.known(node.right)):
        power = place.known(node.right)
        for other in (power - 1, power + 1, -power, power / 2, 2 * power):
            text = f"{int(other) if other == int(other) else other}"
            yield place.to(
                2, rule.atom(node.left) if other == 1 else place.written({node.right: text})
            )


def _summed(node: Any) -> Iterator[Any]:
    """The terms of a sum."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _summed(node.left)
        yield from _summed(node.right)
    else:
        yield node


def _signed(place: Place, left: Any, old: str, sign: str) -> str:
    """Its text with another operator: the first behind the left operand and what closes it."""
    text = place.e.text
    opened = place.written({left: "\0"}).index("\0")
    start = opened + len(place.e.rule.text(left))
    return text[:start] + text[start:].replace(old, sign, 1)


def _compared(place: Place) -> Iterator[Rewrite]:
    node = place.e.node
    if len(node.ops) > 1:
        return
    old = _COMPARISONS.get(type(node.ops[0]), "")
    signs = [*_COMPARISONS.values()] if old else []
    if isinstance(node.comparators[0], ast.Constant) and type(node.comparators[0].value) is str:
        signs = ["==", "!="]  # a text is that or another one
    for sign in signs:
        if sign != old:
            yield place.to(2, _signed(place, node.left, old, sign))


def _exchanged(place: Place, operands: Sequence[Any]) -> Iterator[Rewrite]:
    """Two operands exchanged: tensors, or other values of one type."""
    text = place.e.rule.text
    for one, other in itertools.combinations(operands, 2):
        values = [place.known(n) for n in (one, other)]
        many = all(isinstance(value, (torch.Tensor, tuple, list)) for value in values)
        kinds = {type(value) for value in values}
        if (many or (len(kinds) == 1 and type(None) not in kinds)) and text(one) != text(other):
            yield place.to(2 if many else 3, place.written({one: text(other), other: text(one)}))


def _calls(place: Place) -> Iterator[Rewrite]:
    """Another function, its arguments exchanged, what it is called of alone."""
    node, rule, value = place.e.node, place.e.rule, place.value
    path, method = names_in(node.func), isinstance(node.func, ast.Attribute)
    name = node.func.attr if method else path[0] if path else ""
    owner = node.func.value if method and place.known(node.func.value) is not None else None
    for others in _FUNCTIONS:
        for other in others if name in others else ():
            if other != name and method:
                head = rule.text(node.func)[: -len(name)]
                yield place.to(
                    2 if name in _REDUCTIONS else 4, place.written({node.func: head + other})
                )
    for keyword in node.keywords:
        if len(node.keywords) == 1 and keyword.arg in _ENDS:
            bound = f"{_ENDS[keyword.arg]}={rule.text(keyword.value)}"
            yield place.to(1, place.written({keyword: bound}))
    yield from _exchanged(place, node.args)
    yield from arranged_otherwise(place)
    held = place.noted.scopes.get(place.e.place, {}).get(path[0]) if len(path) == 2 else None
    for other, kept in getattr(held, "__dict__", {}).items():  # an adjoint beside its operator
        if callable(kept) and other not in (name, "_ctx") and not isinstance(kept, torch.Tensor):
            yield place.to(2, place.written({node.func: f"{path[0]}.{other}"}))
    whole = owner if owner is not None else node.args[0] if node.args else None
    of = None if whole is None else place.known(whole)
    if not (isinstance(of, torch.Tensor) and isinstance(value, torch.Tensor)):
        return
    if is_continuous(of) == is_continuous(value):
        lowers = is_continuous(of) and torch.finfo(of.dtype).eps < torch.finfo(value.dtype).eps
        yield place.to(2 if name in _REDUCTIONS else 3 if lowers else 4, rule.text(whole))
        if of.ndim and not value.ndim:  # an item's own number, beside all that the item has
            for count in range(1, _MOST):
                yield place.to(2, f"{rule.atom(whole)}[..., {', '.join(['None'] * count)}]")
    if name in _REDUCTIONS and is_continuous(of):
        yield from _reduced(place, rule.atom(whole), of)


def _reduced(place: Place, of: str, whole: torch.Tensor) -> Iterator[Rewrite]:
    """A sum or mean along other dimensions, or within the segments that an index names."""
    value, every = place.value, [*range(whole.ndim)][:_MOST]
    kept = value.ndim == whole.ndim
    for name in _REDUCTIONS:
        for count in range(1, len(every) + 1):
            for dims in itertools.combinations(every, count):
                shown = f"{along(dims[0], whole.ndim) if count == 1 else dims}"
                for keep in (kept, True):
                    tail = ", keepdim=True" * keep
                    yield place.to(4 if keep == kept else 5, f"{of}.{name}({shown}{tail})")
    for name in place.tensors():
        index = name.value
        if index.dtype == torch.int64 and index.ndim == 1 and int(index.min()) >= 0:
            for dim in (d for d in every if len(index) == whole.shape[d]):
                shape = [f"int({name.text}.max()) + 1" if d == dim else f"{of}.shape[{d}]"
                         for d in range(whole.ndim)]  # fmt: skip
                zeros = f"{of}.new_zeros({', '.join(shape)})"
                text = (
                    f"{zeros}.index_add({dim}, {name.text}, {of}).index_select({dim}, {name.text})"
                )
                yield place.to(5, text)


def _attributes(place: Place) -> Iterator[Rewrite]:
    """The other part of complex numbers."""
    node = place.e.node
    for one, other in itertools.permutations(("real", "imag")):
        if node.attr == one and isinstance(place.value, torch.Tensor):
            yield place.to(2, f"{place.e.rule.text(node.value)}.{other}")


def _parts(place: Place) -> Iterator[Rewrite]:
    """The whole, or as many entries from its other end."""
    node, value = place.e.node, place.value
    yield from _indexed_otherwise(place)
    whole = place.known(node.value)
    if isinstance(whole, (tuple, list)) and isinstance(value, type(whole)):
        turned_round = getattr(node.slice, "step", None) is not None
        yield place.to(0 if turned_round else 1, place.e.rule.text(node.value))
    if not (isinstance(whole, torch.Tensor) and isinstance(value, torch.Tensor)):
        return
    yield place.to(4, place.e.rule.text(node.value))
    if whole.ndim != value.ndim:
        return
    called = {n.value: n.text for n in reversed(place.numbers) if type(n.value) is int}
    for dim, (count, every) in enumerate(zip(value.shape, whole.shape, strict=True)):
        skipped, before = every - count, ":, " * dim
        named = {n: called.get(n, n) for n in (count, skipped)}
        # Of all but some, too: where it is written so, other sizes are meant as well.
        ends = {f":-{named[skipped]}": 2, f"{named[skipped]}:": 2, f":{named[count]}": 4}
        for part, rank in ends.items() if skipped else ():
            yield place.to(rank, f"{place.e.rule.text(node.value)}[{before}{part}]")


def _indexed_otherwise(place: Place) -> Iterator[Rewrite]:
    """An entry by the indices of another that the rule reads or writes, where several differ."""
    rule, own = place.e.rule, _indices(place.e.node)
    found: dict[str, None] = {}
    for other in (n for n in ast.walk(rule.tree) if isinstance(n, ast.Subscript)):
        texts = {n: rule.text(m) for n, m in zip(own, _indices(other), strict=False)}
        unlike = {n: text for n, text in texts.items() if text != rule.text(n)}
        if len(unlike) > 1:
            found[place.written(unlike)] = None
    yield from (place.to(2, text) for text in found)


def _indices(node: Any) -> Sequence[Any]:
    return getattr(node.slice, "elts", [node.slice])


def _numbers(place: Place) -> Iterator[Rewrite]:
    """Another number."""
    value, text = place.value, place.e.atom
    whole, node = type(value) is int or _is_bound(place), place.e.node
    constant = isinstance(getattr(node, "operand", node), ast.Constant)
    if isinstance(node, ast.Name) and isinstance(place.e.rule.parent[node], ast.BinOp):
        yield from (place.to(4, name.text, name.text) for name in _moving(place))
    for name in place.numbers:
        if name.value != value and name.text != text:
            if not whole or constant or name.value == int(name.value):
                named = constant and not is_size(name)
                yield place.to(0 if named else 3 if constant else 2, name.text)
            if type(name.value) is float:
                yield place.to(4, f"{name.text} ** 2")
                yield place.to(4, f"(1 - {name.text})")
                yield from (place.to(5, f"({text} {sign} {name.text})") for sign in "+-*/")
    if whole:
        near = [n for n in (-1, 0, 1, 2, 3, -2) if n != value]
        if constant and isinstance(place.e.rule.parent[node], (ast.BinOp, ast.Call)):
            yield from (place.to(6, f"{text} * {n.text}") for n in _moving(place))
        if not constant:
            rank = 0 if _is_bound(place) and not isinstance(node, ast.BinOp) else 1
            yield place.to(rank, f"{text} - 1")
            yield place.to(rank, f"{text} + 1")
        else:
            near += [n for n in (value - 1, value + 1, -value) if n not in (*near, value)]
    else:
        alone = f"{text} ** 2", f"{text} ** 0.5", f"-{text}", f"1 / {text}", f"1 - {text}"
        near = [n for n in (1.0, 0.5, 2.0, 0.0) if n != value]
        yield from (place.to(3, other) for other in alone if value > 0 or "0.5" not in other)
        if constant:
            near += [2 * value, value / 2, value + 1, value - 1]
            near += [n for n in place.e.rule.literals if n not in (*near, value)]
        for name in () if constant else _moving(place):
            yield place.to(4, f"{text} * {name.text}")
            yield place.to(5, f"{text} * {name.text}.sign()")
    yield from (place.to(2 if n == -1 or n < 0 > value else 3, f"{n}") for n in near)


def _is_bound(place: Place) -> bool:
    """Whether it is one of the ends of a range: of a compiled one it may be no whole number."""
    around = place.e.rule.parent[place.e.node]
    return isinstance(around, ast.Call) and names_in(around.func)[-1:] in (["range"], ["arange"])


def _moving(place: Place) -> Iterator[Name]:
    yield from (name for name in place.tensors() if is_continuous(name.value))


_BY_NODE: Mapping[type[ast.AST], Callable[[Place], Iterator[Rewrite]]] = {
    ast.BinOp: _operators, ast.UnaryOp: _negated, ast.Compare: _compared, ast.Tuple: _of_several,
    ast.List: _of_several, ast.IfExp: _of_several, ast.Call: _calls, ast.Subscript: _parts,
    ast.Attribute: _attributes,
}  # fmt: skip
