"""Numbers as a product of what is at hand, as a sum of one, or as a mask: what a rule lacks.

The logarithm of a product is the sum of its factors' logarithms. What each factor's are along a
few directions that a constant factor does not move tells which pairs of pairs make the sum that
is asked for, without one product of four being made (Horowitz and Sahni, "Computing Partitions
with Applications to the Knapsack Problem", Journal of the ACM 21, 1974). What is left over has to
be one number for all entries, and one with a name.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from pullback.conformance.inputs._arguments import is_continuous
from pullback.conformance.source._names import (
    Name,
    along,
    is_number,
    is_size,
    named_factors,
    views,
)

__all__ = ["comparisons", "products", "summed"]

_EXACT = 1e-5
_FEWEST = 6  # entries of a tensor that factors of its shape must explain
_MOST = 2**12  # entries of a factor
_BEST = 4
_FACTORS = 240  # of which products of up to four are made
_ALIKE = 3  # of the same numbers, that hang on other options
_LARGE = 1e-2  # beside the largest: entries whose logarithms are told to all digits
_DIRECTIONS = 3
_SUMMED = {1: 200, 2: 130, 3: 80}  # the factors that sums of products of so many are made of
_ROOM = 2**23  # entries of all of these together
# The likeliest first.
_FORMS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "/ {0}": torch.reciprocal, "{0} ** 2": torch.square,
    "(1 - {0})": lambda t: 1 - t, "(1 - {0} ** 2)": lambda t: 1 - t * t,
    "/ {0} ** 2": lambda t: t**-2, "{0}.sqrt()": torch.sqrt, "{0}.abs()": torch.abs,
    "{0}.exp()": torch.exp, "{0}.log()": torch.log, "{0}.sin()": torch.sin,
    "{0}.cos()": torch.cos, "{0}.sign()": torch.sign, "{0}.sigmoid()": torch.sigmoid,
    "{0}.tanh()": torch.tanh, "(1 + {0})": lambda t: 1 + t,
}  # fmt: skip
# Powers by an option, the likeliest first.
_POWERS: Mapping[str, Callable[[float], float]] = {
    "({0} - 1)": lambda p: p - 1, "{0}": lambda p: p, "({0} - 2)": lambda p: p - 2,
    "(1 - {0})": lambda p: 1 - p, "({0} + 1)": lambda p: p + 1, "(-{0})": lambda p: -p,
    "(1 / {0})": lambda p: 1 / p, "(1 / {0} - 1)": lambda p: 1 / p - 1,
}  # fmt: skip
_OPTIONS = 3  # that powers are made of
_SIMPLE = [
    m / n for n in (1, 2, 3, 4, 6) for m in (1, 2, 3, 4, 5) if math.gcd(m, n) == 1 and m != n
]


class _Over(NamedTuple):
    """A shape whose sum along some dimensions has the shape of what is asked for."""

    shape: torch.Size
    dims: tuple[int, ...] = ()
    keeps: bool = False

    @property
    def call(self) -> str:
        if not self.dims:
            return ""
        every = len(self.dims) == len(self.shape)
        one = along(self.dims[0], len(self.shape)) if len(self.dims) == 1 else self.dims
        dims = "" if every else f"{one}"
        return f".sum({dims}{', keepdim=True' * self.keeps})"


def products(
    target: torch.Tensor, operands: Sequence[Name], numbers: Sequence[Name],
    more: Sequence[Name] = (),
) -> Iterator[str]:  # fmt: skip
    """Products that equal a tensor, and sums of some along dimensions.

    Arguments:
        target: real numbers.
        operands: what may be a factor, the likeliest first.
        numbers: what may be named as a number, sizes among them.
        more: what may be a factor where those do not do.

    Yields:
        How each is written, those of the fewest factors first.
    """
    if not bool(target.isfinite().all()) or not bool(target.any()):
        return
    tensors = [n for n in operands if isinstance(n.value, torch.Tensor) and is_continuous(n.value)]
    tensors = [n for n in tensors if not n.value.is_complex()]
    flat = target.double()
    if _FEWEST <= target.numel() <= _MOST:
        factors = _factors(tensors, numbers, target.shape)
        for found in _of_factors(flat.reshape(-1), factors):
            yield from _named(found, numbers)
    shapes = dict.fromkeys(n.value.shape for n in tensors if n.value.numel() > target.numel())
    overs = [over for shape in shapes for over in _overs(shape, target.shape)]
    for over in overs[:2]:
        if over.shape.numel() <= _MOST:
            factors = _factors(tensors, numbers, over.shape)
            for found in _of_sums(flat, over, factors):
                yield from _named(found, numbers)
    if more:
        yield from products(target, [*operands, *more], numbers)


_Found = Sequence[tuple[str, float]]
"""Products of equally many factors, and what number is left over."""


def _named(found: _Found, numbers: Sequence[Name]) -> list[str]:
    """How they are written with the number, the likeliest first."""
    written = [
        (rank, len(whole), whole)
        for text, share in found for rank, whole in _with_number(text, share, numbers)
    ]  # fmt: skip
    return [text for _, _, text in sorted(written)][:_BEST]


def summed(text: str, value: torch.Tensor, shape: torch.Size) -> tuple[str, torch.Tensor] | None:
    """A tensor of a shape: itself, or its sum along dimensions, and how that is written."""
    if value.shape == shape:
        return text, value
    over = next(_overs(value.shape, shape), None)
    if over is None:
        return None
    return f"({text}){over.call}", value.sum(over.dims, keepdim=over.keeps)


def _overs(shape: torch.Size, target: torch.Size) -> Iterator[_Over]:
    for count in range(1, len(shape) + 1):
        for dims in itertools.combinations(range(len(shape)), count):
            if target == tuple(n for d, n in enumerate(shape) if d not in dims):
                yield _Over(shape, dims)
            elif target == tuple(1 if d in dims else n for d, n in enumerate(shape)):
                yield _Over(shape, dims, keeps=True)


def _factors(
    operands: Sequence[Name], numbers: Sequence[Name], shape: torch.Size
) -> dict[str, torch.Tensor]:
    """What may be a factor of a tensor of a shape, by how it is written."""
    found: dict[str, torch.Tensor] = {}
    tensors = [n._replace(value=n.value.detach().cpu().double()) for n in operands]
    every = [view for name in tensors for view in views(name, shape)]
    fitting = [view for view in every if _goes_with(view.value, shape)]
    for text, value in fitting:
        _add(found, text, value, shape)
    options = [n for n in numbers if is_number(n.value) and not is_size(n)]
    for option in [n for n in options if n.value not in (0, 1)][:_OPTIONS]:
        for power_form, power_of in _POWERS.items():
            power = power_of(float(option.value))
            for text, value in fitting if power not in (0, 1) else ():
                if power == int(power) or bool((value >= 0).all()):
                    written = f"{text} ** {power_form.format(option.text)}"
                    _add(found, written, value**power, shape)
    for form, compute in _FORMS.items():
        for text, value in fitting:
            _add(found, form.format(text), compute(value), shape)
    return found


def _add(found: dict[str, torch.Tensor], text: str, value: torch.Tensor, shape: torch.Size) -> None:
    if value.isfinite().all():
        found[text] = value.expand(shape).reshape(-1)


def _of_factors(target: torch.Tensor, factors: Mapping[str, torch.Tensor]) -> Iterator[_Found]:
    """Products that equal a vector but for one number."""
    large = target.abs() > _LARGE * target.abs().max()
    if int(large.sum()) < _FEWEST - 1:
        return
    generator = torch.Generator().manual_seed(0)
    along = torch.randn(
        int(large.sum()), _DIRECTIONS, dtype=torch.float64, generator=generator, device="cpu"
    )
    along = (along - along.mean(0)) / along.norm(dim=0)
    every = torch.stack([target, *factors.values()])[:, large].abs().log() @ along
    wanted, at = every[0], every[1:]
    # What is another factor with other options alone is looked up once; one number is none.
    alike: dict[tuple[int, ...], list[int]] = {}
    for k, place in enumerate(at.tolist()):
        if all(map(math.isfinite, place)) and any(abs(n) > _EXACT for n in place):
            alike.setdefault(tuple(round(n / _EXACT) for n in place), []).append(k)
    kept = [*alike.values()][:_FACTORS]
    texts = [[[*factors][k] for k in some[:_ALIKE]] for some in kept]
    for rows in _sums(at[[some[0] for some in kept]], wanted):
        yield _checked(target, rows, texts, factors)


def _sums(at: torch.Tensor, wanted: torch.Tensor) -> Iterator[set[tuple[int, ...]]]:
    """Which of some vectors add up to another one: none of them, one, two, three, four."""
    count = len(at)
    zero = torch.zeros(1, at.shape[1], dtype=at.dtype)
    ones = [(k,) for k in range(count)]
    twos = torch.combinations(torch.arange(count))
    pairs = at[twos].sum(1)
    moves = (pairs.abs() > _EXACT).any(1)  # no factor and its inverse
    twos, pairs = twos[moves], pairs[moves]
    both = [tuple(row) for row in twos.tolist()]
    parts = {0: (zero, [()]), 1: (at, ones), 2: (pairs, both)}
    for one, other in ((0, 0), (0, 1), (0, 2), (1, 2), (2, 2)):
        (left, first), (right, second) = parts[one], parts[other]
        if len(left) and len(right):
            yield {
                rows
                for k, j in _meeting(left, right, wanted)
                if len(set(rows := tuple(sorted((*first[k], *second[j]))))) == one + other
            }


def _meeting(
    left: torch.Tensor, right: torch.Tensor, wanted: torch.Tensor
) -> list[tuple[int, int]]:
    """The pairs of a row on the left and one on the right that add up to what is wanted."""
    order = right[:, 0].argsort()
    sorted_ = right[order, 0].contiguous()
    asked = wanted - left
    low = torch.searchsorted(sorted_, (asked[:, 0] - _EXACT).contiguous())
    high = torch.searchsorted(sorted_, (asked[:, 0] + _EXACT).contiguous())
    counts = high - low
    rows = torch.arange(len(left)).repeat_interleave(counts)
    starts = (counts.cumsum(0) - counts).repeat_interleave(counts)
    others = order[low.repeat_interleave(counts) + torch.arange(len(rows)) - starts]
    near = ((asked[rows] - right[others]).abs() <= _EXACT).all(1)
    return [*zip(rows[near].tolist(), others[near].tolist(), strict=True)]


def _checked(
    target: torch.Tensor, rows: set[tuple[int, ...]], texts: Sequence[Sequence[str]],
    factors: Mapping[str, torch.Tensor],
) -> _Found:  # fmt: skip
    """Those that are equal entry by entry, each way with a number of its own."""
    found = []
    for row in sorted(rows)[: 8 * _BEST]:
        ways = itertools.product(*(texts[k] for k in row))
        for way in itertools.islice(ways, _BEST):
            made = math.prod((factors[text] for text in way), start=torch.ones_like(target))
            share = float((made * target).sum() / made.square().sum())
            if bool((share * made - target).abs().max() <= _EXACT * target.abs().max()):
                found.append((_joined(way), share))
    return found


def _of_sums(
    target: torch.Tensor, over: _Over, factors: Mapping[str, torch.Tensor]
) -> Iterator[_Found]:
    """Products whose sum along some dimensions equals a tensor but for one number."""
    texts, flat = list(factors), target.reshape(-1)
    values = torch.stack([*factors.values()]) if factors else torch.zeros(0)
    for count, most in _SUMMED.items():
        some = min(most, len(texts))
        while math.comb(some, count) * count * over.shape.numel() > _ROOM:
            some -= 1
        rows = torch.combinations(torch.arange(some), count)
        if len(rows):
            made = values[rows].prod(1).reshape(len(rows), *over.shape)
            made = made.sum(tuple(d + 1 for d in over.dims)).reshape(len(rows), -1)
            share = (made * flat).sum(1) / made.square().sum(1)
            off = (share[:, None] * made - flat).abs().amax(1)
            best = (off <= _EXACT * flat.abs().max()).nonzero().reshape(-1).tolist()
            yield [
                (f"({_joined([texts[k] for k in rows[row].tolist()])}){over.call}",
                 float(share[row]))
                for row in best[: 4 * _BEST]
            ]  # fmt: skip


def _joined(texts: Sequence[str]) -> str:
    over = " * ".join(text for text in texts if not text.startswith("/")) or "1"
    return " ".join([over, *(text for text in texts if text.startswith("/"))])


def _with_number(text: str, share: float, numbers: Sequence[Name]) -> Iterator[tuple[int, str]]:
    """The product times the number that is left over, with a rank."""
    if abs(abs(share) - 1) < _EXACT:
        yield 0, "-" * (share < 0) + text
    yield from ((rank, how.format(text)) for rank, how in named_factors(share, numbers))
    for number in _SIMPLE:
        if abs(abs(share) - number) < _EXACT:
            yield 2, f"{'-' * (share < 0)}{number:.6g} * {text}"


# Masks: where a gradient stops -------------------------------------------------------------------

_TENSORS, _NUMBERS = 10, 6  # that are compared, the likeliest first
_PAIRS, _COMPARED = 24, 20


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
    if bool(some.all()) or not bool(some.any()):
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
    yield from (texts[k] for k in right[:_COMPARED])
    for sign, near in (("&", values | ~some), ("|", ~values | some)):
        rows = near.all(1).nonzero().flatten().tolist()
        for k, j in itertools.combinations(rows[:_PAIRS], 2):
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
