"""What may have been meant in the place of a tensor: another one, a factor, a term, a place.

And by a call that arranges: repeats, permutes, reshapes, sums of products.
"""

import ast
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from pullback.conformance.comparison._changes import is_same
from pullback.conformance.inputs._arguments import is_continuous
from pullback.conformance.source._names import (
    Meant,
    Name,
    Place,
    Rewrite,
    along,
    go_together,
    is_plain,
    turned,
    views,
)
from pullback.conformance.source._written import names_read

__all__ = ["arranged_otherwise", "of_a_tensor", "wherever_it_is_read"]

_MOST = 4  # dimensions of which every order is tried
_LARGE = 2**16  # entries of a tensor for which only what is likely is tried
# Of a factor, what is read, the expression and an operand, with their ranks.
_WITH_ONE = {
    "{0} * {1}": 3, "{0} / {1}": 3, "{0} * (1 - {1})": 5, "{0} * {1}.sign()": 5,
    "{0} * {1} ** 2": 5, "{0} / {1} ** 2": 5, "{0} * (1 - {1} ** 2)": 6, "{2} + {1}": 6,
    "{2} - {1}": 6, "{0} * {1}.conj()": 6,
    # What a norm, a softmax or a projection takes away.
    "{0} - {1} * ({1} * {0}).sum(-1, keepdim=True)": 6,
    "{0} - {1} * ({1} * {0}).mean(-1, keepdim=True)": 6,
    "{2} - {1} * {3}.sum(-1, keepdim=True)": 6,
}  # fmt: skip
_TERMS = ("{2} + {1}", "{2} - {1}")
# Of an operand, a factor, and the expression.
_ALONE = ("1 - {1}", "{0} ** 2", "{0}.sqrt()", "1 / {0}", "{2} + 1", "{2} - 1", "1 - {0} ** 2")
# Of these and a dimension.
_ALONG = ("{0}.sum({3}, keepdim=True)", "{0}.sum({3})", "{0}.mean({3}, keepdim=True)",
          "{0}.mean({3})", "{2} - {0}.mean({3}, keepdim=True)")  # fmt: skip
# A tensor turned round along a dimension, or by one entry; of it, the dimension, and what stands
# before an index along that.
_SHIFTED = {
    "{0}.flip({1})": 5, "{0}.roll(1, {1})": 6, "{0}.roll(-1, {1})": 6,
    "torch.cat([torch.zeros_like({0}[{2}:1]), {0}[{2}:-1]], {1})": 5,
    "torch.cat([{0}[{2}1:], torch.zeros_like({0}[{2}:1])], {1})": 5,
}  # fmt: skip
# Of what forward left, one for the other: a logarithm, a logit, an angle.
_OF_NAMES = ("exp", "log", "sigmoid", "tanh", "sin", "cos", "sign", "abs")


def of_a_tensor(place: Place) -> Meant:
    """Rewrites of an expression that is a tensor."""
    e, value = place.e, place.value
    if isinstance(e.node, (ast.Name, ast.Attribute, ast.Subscript)):
        yield from ((5, number.text) for number in place.numbers)
        yield from ((6, f"{e.text}.{name}()") for name in _OF_NAMES if is_continuous(value))
        yield from ((5 - near, text, text) for text, near in _others(place))
    if value.dtype == torch.bool:
        yield 1 if e.is_asked else 3, f"~{e.atom}"
    elif value.dtype == torch.int64:  # an index, one too far or not far enough
        yield from ((4, f"{e.text} {by} 1") for by in "+-")
        yield 3, f"{e.atom}.argsort()"  # an order, for its inverse
    elif is_continuous(value) and value.numel() <= _LARGE:
        yield from _restored(place)
        yield from _with_names(place)
        yield from _as_elsewhere(place)
        yield from _alone(place)
        yield from _arranged(place)


def wherever_it_is_read(place: Place) -> Iterator[Rewrite]:
    """Another tensor, at all places where the same is read."""
    e = place.e
    if is_plain(place.value) and isinstance(e.node, (ast.Name, ast.Attribute, ast.Subscript)):
        same = [o for o in e.rule.expressions if o.text == e.text and o.key in place.noted.first]
        if len(same) > 1 and same[0] == e:
            for text, near in _others(place):
                yield Rewrite(5 - near, dict.fromkeys(same, text))


def _others(place: Place) -> Iterator[tuple[str, bool]]:
    """The other tensors, and whether they are alike."""
    value = place.value
    for text, other in place.tensors:
        if text != place.e.text and not is_same(other, value):
            yield text, other.shape == value.shape and other.dtype == value.dtype


def _restored(place: Place) -> Meant:
    """Multiplied again by a norm, or the like, that was divided by first.

    Whoever divides by one number what that is computed of means to.
    """
    e = place.e
    for of, by in e.rule.normalised if e.is_whole else ():
        whole, one = place.known(of), place.known(by)
        count = one.numel() if isinstance(one, torch.Tensor) else 1
        known = isinstance(whole, torch.Tensor) and isinstance(one, (float, torch.Tensor))
        if known and count < whole.numel() and of not in _factors(e.node):
            yield 0, f"{e.factor} * {e.rule.atom(by)}"


def _factors(node: Any) -> Iterator[Any]:
    """What a product is made of, and a ratio."""
    yield node
    match node:
        case (
            ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=right)
            | ast.Call(func=ast.Attribute(value=left, attr="mul" | "div"), args=[right, *_])
        ):
            yield from (*_factors(left), *_factors(right))


def _with_names(place: Place) -> Meant:
    """A factor or a term that is forgotten, or one too many."""
    value, factor, ends = place.value, place.e.factor, (place.e.text, place.e.atom)
    for number in (n for n in place.names if type(n.value) is float):
        yield from ((4, f"{factor} {sign} {number.text}") for sign in "*/")
    for text, other in place.tensors:
        shown = [view.text for view in views(Name(text, other), value.shape)]
        for view in shown:
            if other.dtype == torch.bool:
                yield 4, f"{factor} * {view}", text
                yield 5, f"{factor} * ~{view}", text
            if other.dtype == torch.int64 and bool(other.all()):  # how many each stands for
                yield 4, f"{factor} / {view}", text
                yield 5, f"{factor} * {view}", text
        if not is_continuous(other) or other.is_complex() > value.is_complex():
            continue
        if other.ndim > 1 and go_together(other.mT.shape, value.shape):
            shown.append(f"{text}.mT")
        for form, rank in _WITH_ONE.items():
            idle = text in place.e.rule.idle and form in _TERMS
            near = 3 if idle else rank  # as likely as that it is a factor
            yield from ((near, form.format(factor, view, *ends), text) for view in shown)
        for beside in place.tensors if text in place.e.rule.unread else ():
            yield from ((6, f"{ends[0]} {sign} {beside.text} * {text}", text) for sign in "-+")


def _as_elsewhere(place: Place) -> Meant:
    """A factor without a name that the rule has at another place, an entry of each pass of a loop.

    What it was in the first pass tells whether it goes with the expression there.
    """
    e, factor = place.e, place.e.factor
    bound = place.noted.scopes.get(e.place, {}).keys()
    named = {name.text for name in place.tensors}
    for sign, node in e.rule.factors:
        other, text = place.known(node), e.rule.atom(node)
        fits = isinstance(other, torch.Tensor) and is_plain(other) and is_continuous(other)
        if (
            text in named
            or text in e.text
            or not fits
            or not names_read(node) & e.rule.local <= bound
        ):
            continue
        if other.is_complex() <= place.value.is_complex() and go_together(
            other.shape, place.value.shape
        ):
            yield 2, f"{factor} {sign} {text}"
            yield 4, f"{factor} {'*' if sign == '/' else '/'} {text}"


def _alone(place: Place) -> Meant:
    """A function of the tensor alone, or another extent of it."""
    atom, form = place.e.atom, (place.e.atom, place.e.factor, place.e.text)
    yield from ((5, how.format(*form)) for how in _ALONE)
    for number in place.numbers:
        if type(number.value) is float and number.value not in (0.0, 1.0, 2.0):
            yield 4, f"{atom} ** {number.text}"
    for dim in (d for d, size in enumerate(place.value.shape) if size > 1):
        at = along(dim, place.value.ndim)
        yield from ((5, how.format(*form, at)) for how in _ALONG)


def _arranged(place: Place) -> Meant:
    """The same numbers at other places, or their complex conjugates."""
    value, atom = place.value, place.e.atom
    yield from ((4, f"{atom}{ending}") for ending in place.e.rule.endings)
    if value.ndim:
        yield 4, f"{atom}[..., None]"
    for one, other in itertools.combinations(range(value.ndim), 2):
        yield 3, turned(atom, ".T") if value.ndim == 2 else f"{atom}.transpose({one}, {other})"
    own = names_read(place.e.node)
    # What does nothing here, as the conjugate of real numbers, is not to be lost.
    read = [n.text for n in place.tensors if n.text in own and n.value.shape == value.shape
            and not torch.equal(n.value, value)]  # fmt: skip
    for text in dict.fromkeys([atom, *read]):
        for dim in (d for d, size in enumerate(value.shape) if size > 1):
            at = along(dim, value.ndim)
            lead = "..., " if value.ndim > 1 and at < 0 else ":, " * dim
            yield from ((rank, how.format(text, at, lead)) for how, rank in _SHIFTED.items())
    if value.is_complex():
        yield 1, f"{atom}.conj()"  # the slip of whoever differentiates in the plane


# Calls that arrange: the same numbers at other places have the same shape, where nothing fails. A
# slip among these is seen in the numbers alone.


def arranged_otherwise(place: Place) -> Meant:
    """Other calls in the place of one that arranges."""
    node, rule = place.e.node, place.e.rule
    match node:
        case ast.Call(func=ast.Attribute(value=of, attr="repeat"), args=times):
            # Each entry again and again, for all one after the other.
            for dim, text in enumerate(map(rule.text, times)):
                if text != "1":
                    yield 2, f"{rule.atom(of)}.repeat_interleave({text}, {dim - len(times)})"
        case ast.Call(
            func=ast.Attribute(attr="einsum"), args=[ast.Constant(str(equation)) as n, *_]
        ):
            texts = _contracted(equation, len(node.args) - 1)
            yield from ((3, rule.spliced({n: f'"{text}"'}, node)) for text in texts)
        case ast.Call(func=ast.Attribute(attr="cumsum" | "cumprod" | "logcumsumexp")):
            yield from _accumulated(place)
        case ast.Call(func=ast.Attribute(attr="sum" | "mean")):
            yield from _reduced(place)
        case ast.Call(func=ast.Attribute(value=of)) if isinstance(place.known(of), torch.Tensor):
            yield from _of_dimensions(place, rule.atom(of), place.known(of).ndim)


def _of_dimensions(place: Place, of: str, ndim: int) -> Meant:
    """Other dimensions of a tensor, in another order or repeated."""
    dims, name, args = range(ndim), place.e.node.func.attr, place.e.node.args
    if name == "repeat_interleave" and args:
        times = place.e.rule.text(args[0])
        for dim in dims:
            # All one after the other, for each entry again and again.
            each = ", ".join(times if d == dim else "1" for d in dims)
            yield 2, f"{of}.repeat({each})"
            yield 3, f"{of}.repeat_interleave({times}, {dim - ndim})"
    elif name == "permute" and ndim <= _MOST:
        for order in itertools.permutations(map(str, dims)):
            yield 2, f"{of}.permute({', '.join(order)})"
    elif name == "transpose" and ndim > 2:
        for one, other in itertools.combinations(range(-ndim, 0), 2):
            yield 3, f"{of}.transpose({one}, {other})"


def _reduced(place: Place) -> Meant:
    """A sum over parts that are laid otherwise: the sizes of a reshape in another order."""
    rule, called = place.e.rule, place.e.node.func
    match called.value:
        case ast.Call(func=ast.Attribute(attr="reshape" | "view") as laid, args=sizes):
            orders = itertools.permutations(sizes) if 1 < len(sizes) <= _MOST else iter([()])
            next(orders)  # as it is
            for order, dim in itertools.product(orders, range(len(sizes))):
                shape = ", ".join(map(rule.text, order))
                yield 4, f"{rule.text(laid)}({shape}).{called.attr}({dim})"


def _accumulated(place: Place) -> Meant:
    """Accumulated from the other end, as the adjoint of a running sum is."""
    node, rule = place.e.node, place.e.rule
    of, args = node.func.value, [*node.args, *(k.value for k in node.keywords if k.arg == "dim")]
    if not isinstance(place.known(of), torch.Tensor) and args:
        of, *args = args
    if len(args) == 1:
        dim = rule.text(args[0])
        yield 3, f"{rule.atom(of)}.flip({dim}).{node.func.attr}({dim}).flip({dim})"


def _contracted(equation: str, count: int) -> Iterator[str]:
    """Letters of a sum of products of so many operands exchanged, within one or in the result."""
    known, _, result = equation.replace(" ", "").partition("->")
    operands = known.split(",")
    if "->" not in equation or len(operands) != count:
        return
    for letters in itertools.permutations(result):
        if "".join(letters) != result and len(result) <= _MOST:
            yield f"{known}->{''.join(letters)}"
    for k, operand in enumerate(operands):
        for one, other in itertools.combinations(operand, 2):
            turned = operand.translate(str.maketrans(one + other, other + one))
            others = ",".join(turned if j == k else o for j, o in enumerate(operands))
            yield f"{others}->{result}"
