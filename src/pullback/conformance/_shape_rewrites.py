"""What may have been meant by a call that arranges: repeats, permutes, reshapes, sums of products.

The same numbers at other places have the same shape, where nothing fails: a slip among these is
seen in the numbers alone.
"""

import ast
import itertools
from collections.abc import Iterator

import torch

from pullback.conformance._place import Meant, Place

__all__ = ["arranged_otherwise"]

_MOST = 4  # dimensions of which every order is tried


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
