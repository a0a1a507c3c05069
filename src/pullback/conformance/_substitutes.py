"""What may have been meant in the place of an operation: another one, of the same operands."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import torch

from pullback.conformance._arguments import is_continuous
from pullback.conformance._operations import Edit, Run, Step
from pullback.conformance._source import atom

__all__ = ["Variant", "is_plain", "substitutes"]

_Operators = Mapping[str, Callable[..., torch.Tensor]]

_COMPARISONS: _Operators = {
    "<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge, "==": torch.eq, "!=": torch.ne,
}  # fmt: skip
_LOGICAL: _Operators = {
    "&": torch.logical_and, "|": torch.logical_or, "^": torch.logical_xor,
}  # fmt: skip
_ARITHMETIC: _Operators = {"+": torch.add, "-": torch.sub, "*": torch.mul, "/": torch.div}
_OPERATORS: _Operators = {**_ARITHMETIC, "maximum": torch.maximum, "minimum": torch.minimum}
# One of these is likely for the other.
_PAIRS = ({"+", "-"}, {"&", "|"})
_FUNCTIONS = (
    torch.sin, torch.cos, torch.sinh, torch.cosh, torch.tanh, torch.exp, torch.expm1, torch.log,
    torch.log1p, torch.sqrt, torch.rsqrt, torch.square, torch.reciprocal, torch.abs, torch.sign,
    torch.sigmoid, torch.relu, torch.erf,
)  # fmt: skip
_SUMS = {"sum": torch.sum, "mean": torch.mean}
_MOST = 4  # dimensions of which every choice is tried


class Variant(NamedTuple):
    """An edit of one step."""

    rank: int  # those of a lower rank are likelier
    edit: Edit
    said: str  # in words, as what follows how the step is written
    becomes: str = ""  # how it is written then, where the author's names suffice


def is_plain(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether it may be edited: a device that is given a wrong index is lost for the process."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    harmless = value.device.type == "cpu" or value.dtype == torch.bool or is_continuous(value)
    return harmless and value.numel() > 0


def substitutes(step: Step, hand: Mapping[str, torch.Tensor]) -> Iterator[Variant]:
    """Every other operation that may be meant.

    Arguments:
        step: the operation.
        hand: what backward has at hand, by name.
    """
    yield from _signs(step)
    if not step.changes and is_plain(step.found):
        yield from _parts(step)
        yield from _others(step)
        yield from _sums(step, hand)


def _signs(step: Step) -> Iterator[Variant]:
    """Another operator between the same two operands."""
    old, source = step.source.sign, step.source
    if len(step.leaves) != 2 or not isinstance(step.found, torch.Tensor):
        return
    order = source.order or (0, 1)
    both = all(getattr(leaf, "dtype", None) == torch.bool for leaf in step.leaves)
    groups = [_LOGICAL] if both else [_COMPARISONS] * (step.found.dtype == torch.bool)
    groups += [_ARITHMETIC] if old in _ARITHMETIC and not step.changes else []
    for sign, compute in itertools.chain.from_iterable(group.items() for group in groups):
        if sign != old:
            compares = sign in _COMPARISONS
            said = f"reads `{sign}`, not `{old}`" if old else f"computes {compute.__name__}"
            yield Variant(
                1 if any({old, sign} <= pair for pair in _PAIRS) else 2 if compares else 4,
                lambda run, leaves, by=compute: by(*(leaves[k] for k in order)),
                f"compares by {sign}" if compares else said,
                source.with_sign(sign) if old else source.with_function(compute.__name__),
            )  # fmt: skip


def _parts(step: Step) -> Iterator[Variant]:
    """As many entries from the other end of what an operation takes a part of."""
    whole = step.leaves[0] if step.leaves else None
    if not isinstance(whole, torch.Tensor) or whole.ndim != step.found.ndim:
        return
    for dim, (count, every) in enumerate(zip(step.found.shape, whole.shape, strict=True)):
        for side, start in (("first", 0), ("last", every - count)) if count < every else ():
            place = dim, start, count
            yield Variant(
                4, lambda run, leaves, place=place: leaves[0].narrow(*place),
                f"takes the {side} {count} of {every} along dimension {dim}",
            )  # fmt: skip


def _others(step: Step) -> Iterator[Variant]:
    """Another operation of the same operands."""
    tensors = [leaf for leaf in step.leaves if is_plain(leaf) and is_continuous(leaf)]
    if not is_continuous(step.found) or len(tensors) != len(step.leaves):
        return
    if len(tensors) == 2:
        for sign, compute in _OPERATORS.items():
            if not (step.source.sign and sign in _ARITHMETIC):
                edit = partial(_applied, compute)
                yield Variant(4, edit, f"computes with {sign}")
    elif len(tensors) == 1 and step.found.shape == tensors[0].shape and step.found.any():
        for compute in _FUNCTIONS:
            name = compute.__name__
            edit, becomes = partial(_applied, compute), step.source.with_function(name)
            yield Variant(4, edit, f"computes {name}", becomes)


def _applied(compute: Callable[..., torch.Tensor], run: Run, leaves: Sequence[Any]) -> torch.Tensor:
    return compute(*leaves)


def _sums(step: Step, hand: Mapping[str, torch.Tensor]) -> Iterator[Variant]:
    """A sum or mean along other dimensions, or within the segments that an index names."""
    whole = step.leaves[0] if step.leaves else None
    if not (is_plain(whole) and is_continuous(whole)) or whole.numel() <= step.found.numel():
        return
    every = [*range(whole.ndim)][:_MOST]
    extents = [d for n in every for d in itertools.combinations(every, n + 1)]
    for name, reduce in _SUMS.items():
        reduced = {d: reduce(whole, d, keepdim=True) for d in extents}
        same = {d: r for d, r in reduced.items() if r.numel() == step.found.numel()}
        kept = [d for d, r in same.items() if torch.allclose(step.found.reshape(r.shape), r)]
        for dims in [d for d in extents if d not in kept] if kept else ():
            along = f"dimension{'s' * (len(dims) > 1)} {' and '.join(map(str, dims))}"
            of = step.source.operand(0)
            shown = dims[0] if len(dims) == 1 else dims
            yield Variant(
                4, lambda run, leaves, by=reduce, dims=dims: by(leaves[0], dims, keepdim=True),
                f"is a {name} along {along}",
                f"{atom(of)}.{name}({shown}, keepdim=True)" if of else "",
            )  # fmt: skip
        for path, index in hand.items() if kept else ():
            for dim in every if index.dtype == torch.int64 and index.ndim == 1 else ():
                if len(index) == whole.shape[dim] and int(index.min()) >= 0:
                    edit = partial(_within_segments, dim, index, name == "mean")
                    yield Variant(4, edit, f"is a {name} within each segment of {path}")


def _within_segments(
    dim: int, index: torch.Tensor, mean: bool, run: Run, leaves: Sequence[Any]
) -> torch.Tensor:
    """What each entry finds in its own segment."""
    whole = leaves[0]
    shape = [int(index.max()) + 1 if k == dim else n for k, n in enumerate(whole.shape)]
    count = torch.bincount(index)[index].reshape([-1] + [1] * (whole.ndim - 1 - dim))
    by = whole / count if mean else whole
    return whole.new_zeros(shape).index_add(dim, index, by).index_select(dim, index)
