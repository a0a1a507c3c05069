"""What may have been meant in the place of an expression: slips of a hand-written rule, undone.

The operators are those of program repair by mutation (Le Goues et al., "GenProg", IEEE
Transactions on Software Engineering 38, 2012) over what a derivative is made of: signs, factors,
terms, operands, dimensions, numbers. Each is a text in the author's own names, evaluated where it
would stand.
"""

import ast
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from pullback.conformance.inputs._arguments import is_continuous
from pullback.conformance.source._names import (
    Meant,
    Name,
    Place,
    Rewrite,
    along,
    is_flag,
    is_number,
    is_plain,
    is_size,
    turned,
)
from pullback.conformance.source._tensor_rewrites import (
    arranged_otherwise,
    of_a_tensor,
    wherever_it_is_read,
)
from pullback.conformance.source._watch import Watch
from pullback.conformance.source._written import Expression, Written, names_in
from pullback.internal._sparse import is_sparse

__all__ = ["rewrites"]

# How an operator is written, and others that it may be meant for, with their ranks.
_OPERATORS: Mapping[type[ast.operator], tuple[str, Mapping[str, int]]] = {
    ast.Add: ("+", {"-": 1, "*": 4, "/": 4}), ast.Sub: ("-", {"+": 1, "*": 4, "/": 4}),
    ast.Mult: ("*", {"+": 4, "-": 4, "/": 2}), ast.Div: ("/", {"+": 4, "-": 4, "*": 2}),
    ast.BitAnd: ("&", {"|": 1, "^": 1}), ast.BitOr: ("|", {"&": 1, "^": 1}),
    ast.BitXor: ("^", {"&": 1, "|": 1}),
}  # fmt: skip
_COMPARISONS: Mapping[type[ast.cmpop], str] = {
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
    place = Place(expression, noted, names, numbers, rules)
    for meant in itertools.chain(_by_its_node(place), _by_its_value(place)):
        yield place.to(*meant)
    yield from wherever_it_is_read(place)


def _by_its_node(place: Place) -> Meant:
    text = place.e.rule.text
    match place.e.node:
        case ast.BinOp():
            yield from _operators(place)
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=of):
            yield 1, text(of)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            old, signs = _COMPARISONS[type(op)], [*_COMPARISONS.values()]
            if isinstance(getattr(right, "value", None), str):
                signs = ["==", "!="]  # a text is that or another one
            yield from ((2, _signed(place, left, old, sign)) for sign in signs if sign != old)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            yield from _exchanged(place, parts)
        case ast.IfExp(body=one, orelse=other):
            yield from _exchanged(place, [one, other])
        case ast.Call():
            yield from _calls(place)
        case ast.Subscript():
            yield from _parts(place)
        case ast.Attribute(value=of, attr="real" | "imag" as part):
            if isinstance(place.value, torch.Tensor):
                yield 2, f"{text(of)}.{'imag' if part == 'real' else 'real'}"


def _by_its_value(place: Place) -> Meant:
    e, value = place.e, place.value
    if value is None:
        yield from ((3, name.text) for name in place.moving)
    elif isinstance(value, tuple) and e.is_whole:
        yield from _reordered(e.atom, value)
    elif type(value) is bool:
        yield from _flags(place)
    elif is_number(value):
        yield from _numbers(place)
    elif type(value) is str:  # known to whatever takes it: the author's functions ask for theirs
        asked = (*_TEXTS, *_FUNCTIONS, *(rule.compared for rule in place.rules))
        known = [text for texts in asked if value in texts for text in texts]
        yield from ((1, repr(text)) for text in dict.fromkeys(known) if text != value)
    elif is_plain(value):
        yield from of_a_tensor(place)
    elif is_sparse(value) and value.ndim == 2:
        yield 3, f"{e.atom}.t()"
    elif e.is_looped:  # in the other order: an adjoint runs back through the steps of forward
        if names_in(getattr(e.node, "func", e.node)) == ["reversed"]:
            yield 2, e.rule.text(e.node.args[0])
        elif isinstance(value, (range, list, tuple)):
            yield 2, f"reversed({e.text})"


def _reordered(text: str, values: Sequence[Any]) -> Meant:
    """Several values that are taken apart, two of them exchanged."""
    tensors = [k for k, value in enumerate(values) if is_plain(value)]
    for one, other in itertools.combinations(tensors, 2):
        order = {one: other, other: one}
        parts = [f"{text}[{order.get(k, k)}]" for k in range(len(values))]
        yield 2, f"{text}[::-1]" if len(parts) == 2 else ", ".join(parts)


def _flags(place: Place) -> Meant:
    """The contrary; of a comparison its own rewrites hold it."""
    node = place.e.node
    if isinstance(node, ast.Constant):
        yield 1, f"{not place.value}"
    elif not isinstance(node, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
        of_another = is_flag(place.e) or getattr(node, "attr", "") == "requires_grad"
        yield 5 if of_another else 1, f"not {place.e.atom}"  # that is likelier


def _operators(place: Place) -> Meant:
    """Another operator, its operands exchanged, one of them alone."""
    node, rule = place.e.node, place.e.rule
    left, right, kind = node.left, node.right, type(node.op)
    sign, others = _OPERATORS.get(kind, ("", {}))
    for other, rank in others.items():
        yield rank, _signed(place, left, sign, other)
    if any(isinstance(place.known(n), (int, torch.Tensor)) for n in (left, right)):
        for kept, dropped in ((left, right), (right, left)):
            rank = 3 if isinstance(kept, ast.Constant) else 2 - is_number(place.known(dropped))
            yield rank, rule.atom(kept)
    if kind is ast.Add and isinstance(place.value, (tuple, list)):
        yield from _exchanged(place, [*_summed(node)])
    if kind in (ast.Sub, ast.Div, ast.MatMult):
        for form in ("{}", "({})"):
            texts = {one: form.format(rule.text(n)) for one, n in ((left, right), (right, left))}
            yield 3, place.written(texts)
    if kind is ast.MatMult:
        yield from _products(place)
    if kind is ast.Pow and is_number(power := place.known(right)):
        for other in (power - 1, power + 1, -power, power / 2, 2 * power):
            text = f"{int(other) if other == int(other) else other}"
            yield 2, rule.atom(left) if other == 1 else place.written({right: text})


def _products(place: Place) -> Meant:
    """A product of matrices in another order, of transposes, or in another basis."""
    node, rule = place.e.node, place.e.rule
    atoms = (rule.atom(node.left), rule.atom(node.right))
    for first, second in (atoms, atoms[::-1]):
        for one, two in itertools.product((first, turned(first)), (second, turned(second))):
            yield 4, f"{one} @ {two}"
    match node.left:
        case ast.BinOp(op=ast.MatMult(), left=outer):
            yield 4, place.written({n: turned(rule.atom(n)) for n in (outer, node.right)})


def _summed(node: Any) -> Iterator[Any]:
    """The terms of a sum."""
    match node:
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            yield from _summed(left)
            yield from _summed(right)
        case _:
            yield node


def _signed(place: Place, left: Any, old: str, sign: str) -> str:
    """Its text with another operator: the first behind the left operand and what closes it."""
    text = place.e.text
    opened = place.written({left: "\0"}).index("\0")
    start = opened + len(place.e.rule.text(left))
    return text[:start] + text[start:].replace(old, sign, 1)


def _exchanged(place: Place, operands: Sequence[Any]) -> Meant:
    """Two operands exchanged: tensors, or other values of one type."""
    text = place.e.rule.text
    for one, other in itertools.combinations(operands, 2):
        values = [place.known(n) for n in (one, other)]
        many = all(isinstance(value, (torch.Tensor, tuple, list)) for value in values)
        kinds = {type(value) for value in values}
        if (many or (len(kinds) == 1 and type(None) not in kinds)) and text(one) != text(other):
            yield 2 if many else 3, place.written({one: text(other), other: text(one)})


def _calls(place: Place) -> Meant:
    """Another function, its arguments exchanged, what it is called of alone."""
    node, rule, value = place.e.node, place.e.rule, place.value
    path, method = names_in(node.func), isinstance(node.func, ast.Attribute)
    name = node.func.attr if method else path[0] if path else ""
    for other in [n for some in _FUNCTIONS if method and name in some for n in some if n != name]:
        head = rule.text(node.func)[: -len(name)]
        yield 2 if name in _REDUCTIONS else 4, place.written({node.func: head + other})
    match node.keywords:
        case [ast.keyword(arg="min" | "max" as end, value=bound) as keyword]:
            yield 1, place.written({keyword: f"{_ENDS[end]}={rule.text(bound)}"})
    yield from _exchanged(place, node.args)
    yield from arranged_otherwise(place)
    held = place.noted.scopes.get(place.e.place, {}).get(path[0]) if len(path) == 2 else None
    for other, kept in getattr(held, "__dict__", {}).items():  # an adjoint beside its operator
        if callable(kept) and other not in (name, "_ctx") and not isinstance(kept, torch.Tensor):
            yield 2, place.written({node.func: f"{path[0]}.{other}"})
    owner = [node.func.value] if method and place.known(node.func.value) is not None else []
    whole = next(iter([*owner, *node.args]), None)
    of = None if whole is None else place.known(whole)
    if isinstance(of, torch.Tensor) and isinstance(value, torch.Tensor):
        if is_continuous(of) == is_continuous(value):
            lowers = is_continuous(of) and torch.finfo(of.dtype).eps < torch.finfo(value.dtype).eps
            yield 2 if name in _REDUCTIONS else 3 if lowers else 4, rule.text(whole)
            # An item's own number, beside all that the item has.
            for count in range(1, _MOST) if of.ndim and not value.ndim else ():
                yield 2, f"{rule.atom(whole)}[..., {', '.join(['None'] * count)}]"
        if name in _REDUCTIONS and is_continuous(of):
            yield from _reduced(place, rule.atom(whole), of)


def _reduced(place: Place, of: str, whole: torch.Tensor) -> Meant:
    """A sum or mean along other dimensions, or within the segments that an index names."""
    every, kept = [*range(whole.ndim)][:_MOST], place.value.ndim == whole.ndim
    for name, count in itertools.product(_REDUCTIONS, range(1, len(every) + 1)):
        for dims in itertools.combinations(every, count):
            shown = f"{along(dims[0], whole.ndim) if count == 1 else dims}"
            for keep in (kept, True):
                yield 4 if keep == kept else 5, f"{of}.{name}({shown}{', keepdim=True' * keep})"
    for text, index in place.tensors:
        if index.dtype == torch.int64 and index.ndim == 1 and int(index.min()) >= 0:
            for dim in (d for d in every if len(index) == whole.shape[d]):
                shape = [f"int({text}.max()) + 1" if d == dim else f"{of}.shape[{d}]"
                         for d in range(whole.ndim)]  # fmt: skip
                summed = f"{of}.new_zeros({', '.join(shape)}).index_add({dim}, {text}, {of})"
                yield 5, f"{summed}.index_select({dim}, {text})"


def _parts(place: Place) -> Meant:
    """Other entries: the whole, or as many from its other end."""
    node, value = place.e.node, place.value
    text, whole = place.e.rule.text(node.value), place.known(node.value)
    yield from _indexed_otherwise(place)
    if isinstance(whole, (tuple, list)) and isinstance(value, type(whole)):
        turned_round = getattr(node.slice, "step", None) is not None
        yield 0 if turned_round else 1, text
    if not (isinstance(whole, torch.Tensor) and isinstance(value, torch.Tensor)):
        return
    yield 4, text
    if whole.ndim != value.ndim:
        return
    called = {n.value: n.text for n in reversed(place.numbers) if type(n.value) is int}
    for dim, (count, every) in enumerate(zip(value.shape, whole.shape, strict=True)):
        if skipped := every - count:
            # Of all but some, too: where it is written so, other sizes are meant as well.
            left, right = (called.get(n, n) for n in (skipped, count))
            ends = {f":-{left}": 2, f"{left}:": 2, f":{right}": 4}
            yield from ((rank, f"{text}[{':, ' * dim}{part}]") for part, rank in ends.items())


def _indexed_otherwise(place: Place) -> Meant:
    """An entry by the indices of another that the rule reads or writes, where several differ."""
    rule, own = place.e.rule, _indices(place.e.node)
    found: dict[str, None] = {}
    for other in rule.nodes(ast.Subscript):
        texts = {n: rule.text(m) for n, m in zip(own, _indices(other), strict=False)}
        unlike = {n: text for n, text in texts.items() if text != rule.text(n)}
        if len(unlike) > 1:
            found[place.written(unlike)] = None
    yield from ((2, text) for text in found)


def _indices(node: Any) -> Sequence[Any]:
    return getattr(node.slice, "elts", [node.slice])


def _numbers(place: Place) -> Meant:
    """Another number."""
    e, value, text, node = place.e, place.value, place.e.atom, place.e.node
    around = e.rule.parent[node]
    # One of the ends of a range: of a compiled one it may be no whole number.
    bound = names_in(getattr(around, "func", None))[-1:] in (["range"], ["arange"])
    whole = type(value) is int or bound
    constant = isinstance(getattr(node, "operand", node), ast.Constant)
    if isinstance(node, ast.Name) and isinstance(around, ast.BinOp):
        yield from ((4, name.text, name.text) for name in place.moving)
    others = [name for name in place.numbers if name.value != value and name.text != text]
    # One of several that are written out is to be another such number: what is named so by chance.
    listed = constant and all(isinstance(n, ast.Constant) for n in getattr(around, "elts", [e]))
    for name in others:
        # Of the entries of a row one is so by chance, where a constant is to be another one.
        by_chance = name.value in (0, 1, -1) and name.text.endswith("]")
        rank = 4 if by_chance else 3 * is_size(name)
        if not whole or constant or name.value == int(name.value):
            yield 4 if listed else rank if constant else 2, name.text
    for name in (name.text for name in others if type(name.value) is float):
        yield from ((4, form) for form in (f"{name} ** 2", f"(1 - {name})"))
        yield from ((5, f"({text} {sign} {name})") for sign in "+-*/")
    if whole:
        near = [-1, 0, 1, 2, 3, -2]
        if constant and isinstance(around, (ast.BinOp, ast.Call)):
            yield from ((6, f"{text} * {name.text}") for name in place.moving)
        if constant:
            near += [value - 1, value + 1, -value]
        else:
            rank = 0 if bound and not isinstance(node, ast.BinOp) else 1
            yield from ((rank, f"{text} {sign} 1") for sign in "-+")
    else:
        alone = f"{text} ** 2", f"{text} ** 0.5", f"-{text}", f"1 / {text}", f"1 - {text}"
        near = [1.0, 0.5, 2.0, 0.0]
        yield from ((3, other) for other in alone if value > 0 or "0.5" not in other)
        if constant:
            near += [2 * value, value / 2, value + 1, value - 1, *e.rule.literals]
        for name in () if constant else place.moving:
            yield from ((4, f"{text} * {name.text}"), (5, f"{text} * {name.text}.sign()"))
    for number in dict.fromkeys(n for n in near if n != value):
        yield 2 if number == -1 or number < 0 > value else 3, f"{number}"
