"""A mask as a comparison of what is at hand, or of two: where a gradient stops."""

import itertools
from collections.abc import Iterator, Sequence

import torch

from pullback.conformance._names import Name, is_number, is_size

__all__ = ["comparisons"]

_FEWEST = 1  # entries of either kind
_TENSORS, _NUMBERS = 10, 6  # that are compared, the likeliest first
_JOINED, _BEST = 24, 20


def comparisons(
    wanted: torch.Tensor, known: torch.Tensor, operands: Sequence[Name], numbers: Sequence[Name]
) -> Iterator[str]:
    """Comparisons, and two of them joined, that equal a mask.

    Arguments:
        wanted: the mask.
        known: where it is asked for.
        operands: what may be compared, the likeliest first.
        numbers: what may be named as a number.

    Yields:
        How each is written, those of the fewest operands first.
    """
    some = wanted[known]
    if min(int(some.sum()), int((~some).sum())) < _FEWEST:
        return
    found: dict[str, torch.Tensor] = {}
    for one, other in _sides(operands, numbers, wanted.shape):
        for sign, compare in _SIGNS.items():
            value = compare(*torch.broadcast_tensors(one[1], other[1]))
            found[f"{one[0]} {sign} {other[0]}"] = value.expand(wanted.shape)[known]
    if not found:
        return
    texts, values = [*found], torch.stack([*found.values()])
    right = (values == some).all(1).nonzero().flatten().tolist()
    yield from (texts[k] for k in right[:_BEST])
    for sign, near in (("&", values | ~some), ("|", ~values | some)):
        rows = near.all(1).nonzero().flatten().tolist()
        for k, j in itertools.combinations(rows[:_JOINED], 2):
            both = values[k] & values[j] if sign == "&" else values[k] | values[j]
            if k not in right and j not in right and torch.equal(both, some):
                yield f"({texts[k]}) {sign} ({texts[j]})"


_SIGNS = {"<": torch.lt, ">": torch.gt, "<=": torch.le, ">=": torch.ge}

_Side = tuple[str, torch.Tensor]


def _sides(
    operands: Sequence[Name], numbers: Sequence[Name], shape: torch.Size
) -> Iterator[tuple[_Side, _Side]]:
    """What is compared with what: a tensor with a number or another one, both times a third."""
    tensors: list[_Side] = []
    for name in operands:
        value = name.value.detach().cpu() if name.value.is_floating_point() else None
        if value is not None and _goes_with(value, shape):
            tensors.append((name.text, value.double()))
    tensors = tensors[:_TENSORS]
    sides = [("0", torch.zeros((), dtype=torch.float64)), *_numbers(numbers)]
    yield from itertools.product(tensors, sides)
    yield from (((f"{t}.abs()", v.abs()), side) for t, v in tensors for side in sides[1:])
    pairs = [*itertools.combinations(tensors, 2)]
    yield from pairs
    for ((one, a), (other, b)), (by, c) in itertools.product(pairs, tensors):
        if by not in (one, other):
            yield (f"{one} * {by}", a * c), (f"{other} * {by}", b * c)


def _numbers(numbers: Sequence[Name]) -> Iterator[_Side]:
    options = [n for n in numbers if is_number(n.value) and not is_size(n) and n.value]
    for text, value in options[:_NUMBERS]:
        forms = {
            text: value,
            f"-{text}": -value,
            f"1 - {text}": 1 - value,
            f"1 + {text}": 1 + value,
        }
        for form, number in forms.items():
            yield form, torch.tensor(float(number), dtype=torch.float64)


def _goes_with(value: torch.Tensor, shape: torch.Size) -> bool:
    pairs = zip(value.shape[::-1], shape[::-1], strict=False)
    return value.ndim <= len(shape) and all(one in (1, other) for one, other in pairs)
