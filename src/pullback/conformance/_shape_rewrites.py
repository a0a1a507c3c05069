"""What may have been meant by a call that arranges: repeats, permutes, reshapes, sums of products.

The same numbers at other places have the same shape, where nothing fails: a slip among these is
seen in the numbers alone.
"""

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from pullback.conformance._place import Place, Rewrite

__all__ = ["arranged_otherwise"]

_MOST = 4  # dimensions of which every order is tried


def arranged_otherwise(place: Place) -> Iterator[Rewrite]:
    """Other calls in the place of one that arranges."""
    node = place.e.node
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    yield from _BY_NAME.get(name, _nothing)(place)


def _nothing(place: Place) -> Iterator[Rewrite]:
    yield from ()


def _owner(place: Place) -> tuple[str, Any]:
    """What is arranged, as it is written, and what it was."""
    of = place.e.node.func.value
    return place.e.rule.atom(of), place.known(of)


def _repeated(place: Place) -> Iterator[Rewrite]:
    """Each entry again and again, for all one after the other."""
    text, args = _owner(place)[0], [place.e.rule.text(n) for n in place.e.node.args]
    for dim in (d for d, times in enumerate(args) if times != "1"):
        yield place.to(2, f"{text}.repeat_interleave({args[dim]}, {dim - len(args)})")


def _repeated_each(place: Place) -> Iterator[Rewrite]:
    """All one after the other, for each entry again and again; along another dimension."""
    text, value = _owner(place)
    if isinstance(value, torch.Tensor) and place.e.node.args:
        times = place.e.rule.text(place.e.node.args[0])
        for dim in range(value.ndim):
            each = ", ".join(times if d == dim else "1" for d in range(value.ndim))
            yield place.to(2, f"{text}.repeat({each})")
            yield place.to(3, f"{text}.repeat_interleave({times}, {dim - value.ndim})")


def _permuted(place: Place) -> Iterator[Rewrite]:
    """Another order of dimensions."""
    text, value = _owner(place)
    if isinstance(value, torch.Tensor) and value.ndim <= _MOST:
        for order in itertools.permutations(range(value.ndim)):
            yield place.to(2, f"{text}.permute({', '.join(map(str, order))})")


def _transposed(place: Place) -> Iterator[Rewrite]:
    """Two other dimensions exchanged."""
    text, value = _owner(place)
    if isinstance(value, torch.Tensor) and value.ndim > 2:
        for one, other in itertools.combinations(range(-value.ndim, 0), 2):
            yield place.to(3, f"{text}.transpose({one}, {other})")


def _reduced(place: Place) -> Iterator[Rewrite]:
    """A sum over parts that are laid otherwise: the sizes of a reshape in another order."""
    rule, of = place.e.rule, place.e.node.func.value
    name = place.e.node.func.attr
    laid = isinstance(of, ast.Call) and isinstance(of.func, ast.Attribute)
    if not (laid and of.func.attr in ("reshape", "view") and 1 < len(of.args) <= _MOST):
        return
    head, sizes = rule.text(of.func), [rule.text(n) for n in of.args]
    for order in itertools.permutations(range(len(sizes))):
        if order != tuple(range(len(sizes))):
            shape = ", ".join(sizes[k] for k in order)
            for dim in range(len(sizes)):
                yield place.to(4, f"{head}({shape}).{name}({dim})")


def _accumulated(place: Place) -> Iterator[Rewrite]:
    """Accumulated from the other end, as the adjoint of a running sum is."""
    node, rule = place.e.node, place.e.rule
    of, args = node.func.value, [*node.args, *(k.value for k in node.keywords if k.arg == "dim")]
    if not isinstance(place.known(of), torch.Tensor) and args:
        of, *args = args
    if len(args) == 1:
        dim = rule.text(args[0])
        yield place.to(3, f"{rule.atom(of)}.flip({dim}).{node.func.attr}({dim}).flip({dim})")


def _contracted(place: Place) -> Iterator[Rewrite]:
    """Letters of a sum of products exchanged, and its operands."""
    node, rule = place.e.node, place.e.rule
    first = node.args[0] if node.args else None
    equation = getattr(first, "value", None)
    if not (isinstance(equation, str) and "->" in equation):
        return
    known, _, result = equation.replace(" ", "").partition("->")
    operands = known.split(",")
    if len(operands) != len(node.args) - 1:
        return
    for letters in itertools.permutations(result):
        if "".join(letters) != result and len(result) <= _MOST:
            yield place.to(3, rule.spliced({first: f'"{known}->{"".join(letters)}"'}, node))
    for k, operand in enumerate(operands):
        for one, other in itertools.combinations(operand, 2):
            turned = operand.translate(str.maketrans(one + other, other + one))
            others = ",".join(turned if j == k else o for j, o in enumerate(operands))
            yield place.to(3, rule.spliced({first: f'"{others}->{result}"'}, node))


_BY_NAME: Mapping[str, Callable[[Place], Iterator[Rewrite]]] = {
    "repeat": _repeated, "repeat_interleave": _repeated_each, "permute": _permuted,
    "cumsum": _accumulated, "cumprod": _accumulated, "logcumsumexp": _accumulated,
    "transpose": _transposed, "sum": _reduced, "mean": _reduced, "einsum": _contracted,
}  # fmt: skip
