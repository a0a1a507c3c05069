"""How two tensors may be related: the wrong numbers as the right ones with one thing changed.

Each rule yields sentences, or claims: a sentence with what equals the expected numbers if it is
true.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from pullback.conformance._pair import CLOSE, Difference, Pair, Rule, Said, are_close, first_true

__all__ = ["EXACT", "RULES", "lowered", "named_factor"]

_LITTLE = 0.05
_NOTHING = 1e-5
# How many times the rounding of an operand may be found in what is computed of it.
_OPERATIONS = 8
# Whole factors that are told as such, also as divisors.
_WHOLE = range(2, 13)


def _zero(pair: Pair) -> Iterator[Said]:
    if not pair.got[pair.known].any():
        yield "Got is zero everywhere."


def _factor(pair: Pair) -> Iterator[Said]:
    """One factor for all entries that has a name."""
    ratio = _one_ratio(pair)
    if _near(ratio, -1.0):
        yield "Got is expected with the other sign."
    right = "expected" if ratio > 0 else "-expected"
    named = named_factor(pair.difference, abs(ratio)) if ratio else None
    if named is not None and named.divides:
        yield f"Got is {right} / {named.text}{named.why}."
    elif named is not None:
        yield f"Got is {named.text} x {right}{named.why}."


def _some_factor(pair: Pair) -> Iterator[Said]:
    ratio = _one_ratio(pair)
    if ratio:
        yield f"Got is {ratio:.4g} x expected."


def _one_ratio(pair: Pair) -> float:
    """By what expected is to be multiplied, one number for all entries; 0 where there is none."""
    expected, got = pair.expected[pair.known], pair.got[pair.known]
    norm = float(expected.abs().square().sum())
    factor = complex((expected.conj() * got).sum() / norm) if norm else 0.0
    ratio = factor.real
    if not ratio or abs(factor.imag) > pair.difference.close * abs(factor):
        return 0.0
    return ratio if pair.equal(pair.got / ratio) and abs(ratio - 1) >= _LITTLE / 5 else 0.0


class Factor(NamedTuple):
    """A factor that has a name: its value, the number that it is or divides by, and why that."""

    value: float
    text: str
    divides: bool
    why: str


def named_factor(difference: Difference, ratio: float) -> Factor | None:
    """The first factor with a name that is close to a ratio."""
    for number, text, why in _numbers(difference):
        if _near(ratio, 1 / number):
            return Factor(1 / number, f"({text})" if "/" in text else text, True, why)
        if _near(ratio, number):
            return Factor(number, text, False, why)
    return None


def _numbers(difference: Difference) -> Iterator[tuple[float, str, str]]:
    """Numbers that have a name: how each is written, and what it is."""
    large = [(name, size) for name, size in difference.sizes.items() if size > 2]
    for name, size in large:
        yield size, f"{size}", f", and {size} is the size of {name}"
    for name, (some, every) in difference.counts.items():
        why = f", and {some} of the {every} {name}"
        yield some / every, f"{some} / {every}", why
        if some > 2:
            yield some, f"{some}", why
    for name, number in difference.numbers.items():
        yield abs(number), f"{abs(number):.4g}", f", and {name} is {number:.4g}"
    for whole in _WHOLE:
        yield whole, f"{whole}", ""
    for name, number in difference.numbers.items():
        for value, how in ((1 - number, f"1 - {name}"), (1 + number, f"1 + {name}")):
            if value > 0:
                yield value, f"{value:.4g}", f", and {how} is {value:.4g}"
    for name, size in large:
        yield size**0.5, f"sqrt({size})", f", and {size} is the size of {name}"


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= CLOSE * abs(other)


def _arranged(pair: Pair) -> Iterator[Said]:
    """The right numbers at other places."""
    got = pair.got
    for first, second in itertools.combinations(range(got.ndim), 2):
        turned = got.transpose(first, second)
        said = f"Got is expected transposed: dimensions {first} and {second} are exchanged"
        yield turned, f"{said}."
        yield turned.reshape(got.shape), f"{said}."
        back = got.reshape(turned.shape).transpose(first, second)
        yield back, f"{said}, and the shape is put back."
    for dim in range(got.ndim):
        yield got.flip(dim), f"Got is expected reversed along dimension {dim}."
        for shift in (1, -1):
            yield got.roll(shift, dim), f"Got is expected, shifted by one along dimension {dim}."
    yield got.conj(), "Got is the complex conjugate of expected."


def _terms(pair: Pair) -> Iterator[Said]:
    """Another gradient, or not all of several terms."""
    others = [(name, t) for name, t in pair.takes(pair.difference.others) if t.any()]
    parts = [(name, t) for name, t in pair.takes(pair.difference.parts) if t.any()]
    for name, term in [*parts, *others]:
        yield pair.got + term, f"The term of {name} is missing."
        yield pair.got - term, f"The term of {name} is counted once too often."
    for name, term in parts:
        share = _ratio_of(term[pair.known], (pair.got - pair.expected + term)[pair.known])
        if share:
            said = f"The term of {name} is {share:.4g} x what it should be."
            yield pair.got + (1 - share) * term, said
    for name, term in others:
        other = Pair(term, pair.got, pair.known, pair.difference)
        if other.equal(pair.got):
            yield f"Got is {name}."
        elif other.equal(-pair.got):
            yield f"Got is minus {name}."


def _factors(pair: Pair) -> Iterator[Said]:
    """A tensor that is missing as a factor, or is one too many, up to a number."""
    whole = [(n, f) for n, f in pair.takes(pair.difference.factors) if f[pair.known].all()]
    for name, factor in whole:
        said = f"Got is expected with {name} where its complex conjugate is meant."
        yield pair.got * factor.conj() / factor, said
    for name, factor in whole:
        if _is_constant(factor[pair.known]):
            continue
        for other, said in (
            (pair.got * factor, f"Got is expected without the factor {name}"),
            (pair.got / factor, f"Got is expected with the factor {name} once too often"),
        ):
            yield other, f"{said}."
            expected = pair.expected[pair.known]
            ratio = _ratio_of(expected, other[pair.known]) if len(expected) > 2 else 0.0
            if ratio:
                yield other / ratio, f"{said}, and {ratio:.4g} times as large."


def _ratio_of(one: torch.Tensor, other: torch.Tensor) -> float:
    norm = float(one.abs().square().sum())
    return complex((one.conj() * other).sum() / norm).real if norm else 0.0


def _is_constant(values: torch.Tensor) -> bool:
    return bool((values - values[0]).abs().max() <= CLOSE * values.abs().max())


def _multiples(pair: Pair) -> Iterator[Said]:
    """Off by a multiple of a tensor, another one for each row: a sum in its term is wrong."""
    if pair.got.is_complex() or not bool(pair.known.all()):
        return
    error = pair.got - pair.expected
    for name, tensor in pair.takes(pair.difference.factors):
        for dim, size in enumerate(error.shape):
            norm = tensor.square().sum(dim, keepdim=True)
            if size < 3 or error.numel() == size or not bool(norm.all()):
                continue
            share = (error * tensor).sum(dim, keepdim=True) / norm
            if are_close(error, share * tensor, pair.difference.close):
                yield (
                    f"Got is off by a multiple of {name}, by another one for each row along "
                    f"dimension {dim}: the sum that this term is multiplied by is wrong."
                )


def _statistics(pair: Pair) -> Iterator[Said]:
    """Off by a multiple of a tensor and a constant: a statistic of it is taken for a constant.

    The derivative of a variance by x_i is a multiple of x_i - mean(x), that of a mean a constant.
    """
    if pair.got.is_complex() or not bool(pair.known.all()):
        return
    error = pair.got - pair.expected
    for name, tensor in pair.takes(pair.difference.factors):
        for dims, where in ((list(range(error.ndim)), ""), ([-1], " along its last dimension")):
            if math.prod(error.shape[d] for d in dims) < 5:
                continue
            away = tensor - tensor.mean(dims, keepdim=True)
            norm = away.square().sum(dims, keepdim=True)
            if not bool(norm.all()):
                continue
            share = (error * away).sum(dims, keepdim=True) / norm
            constant = error.mean(dims, keepdim=True).expand_as(error)
            if are_close(error, share * away + constant, pair.difference.close) and not are_close(
                error, constant, pair.difference.close
            ):
                yield (
                    f"Got is off by a multiple of {name} and a constant{where}: the derivative "
                    "through its mean, variance or the like is missing."
                )


def _rows(pair: Pair) -> Iterator[Said]:
    """The same numbers all along a dimension."""
    got, expected = pair.got, pair.expected
    whole = bool(pair.known.all())
    for dim in range(got.ndim):
        first = got.narrow(dim, 0, 1).expand_as(got)
        if got.shape[dim] < 2 or not are_close(got, first, pair.difference.close):
            continue
        if are_close(expected[pair.known], expected.narrow(dim, 0, 1).expand_as(got)[pair.known],
                 pair.difference.close):  # fmt: skip
            continue
        what = "the same for all entries" if got.ndim == 1 else f"the same along dimension {dim}"
        for name, reduced in (("sum", expected.sum(dim, keepdim=True)),
                              ("mean", expected.mean(dim, keepdim=True))):  # fmt: skip
            if whole and are_close(first, reduced.expand_as(got), pair.difference.close):
                yield f"Got is {what}: the {name} of expected along it."
        yield f"Got is {what}, expected is not."


def _reduced(pair: Pair) -> Iterator[Said]:
    """A sum along a dimension that is not taken, or of which the mean is left out."""
    for name, tensor in pair.difference.reduced.items():
        wide = tensor.detach().to("cpu", pair.expected.dtype)
        for dim in range(wide.ndim):
            if wide.shape[dim] > 1:
                kinds = {"first entry": wide.select(dim, 0), "last entry": wide.select(dim, -1)}
                seen = [k for k, v in kinds.items() if v.shape == pair.got.shape
                        and are_close(v, pair.got, pair.difference.close)]  # fmt: skip
                tail = f"got is its {seen[0]}" if seen else "got is not"
                said = f"Expected is the sum of {name} along dimension {dim}; {tail}."
                yield wide.sum(dim), said
    for dim in range(pair.got.ndim if bool(pair.known.all()) else 0):
        said = f"Expected is got less its mean along dimension {dim}: that term is missing."
        yield pair.got - pair.got.mean(dim, keepdim=True), said


def _signs(pair: Pair) -> Iterator[Said]:
    if not pair.expected.is_complex() and are_close(
        pair.got.abs()[pair.known], pair.expected.abs()[pair.known], pair.difference.close
    ):
        wrong = int((pair.got.sign() != pair.expected.sign())[pair.known].sum())
        yield f"Got has the right size, and the wrong sign at {wrong} of {int(pair.known.sum())}."


@dataclass(frozen=True)
class _Along:
    """Where along one dimension something is wrong.

    Arguments:
        said: the dimension, in words.
        size: how many places it has.
        wrong: the places with a wrong entry.
        right: the places that are known to have none.
        tail: what stands in the wrong part, where that has a name.
    """

    said: str
    size: int
    wrong: list[int]
    right: list[int]
    tail: str

    @property
    def named(self) -> str:
        shown = ", ".join(map(str, self.wrong[:4])) + (", ..." if len(self.wrong) > 4 else "")
        return f"Right but for index {shown} of {self.size} along {self.said}{self.tail}"


def _along(pair: Pair) -> Iterator[_Along]:
    """The dimensions along which some places are wrong and some are right."""
    wrong = (pair.got - pair.expected).abs() > pair.difference.close * pair.size
    wrong &= pair.known
    for dim, size in enumerate(wrong.shape):
        others = [k for k in range(wrong.ndim) if k != dim]
        touched = wrong.any(others) if others else wrong  # type: ignore[call-overload]
        seen = pair.known.any(others) if others else pair.known  # type: ignore[call-overload]
        places = [k for k in range(size) if bool(touched[k])]
        right = [k for k in range(size) if bool(seen[k] & ~touched[k])]
        if right and places:
            said = f"dimension {dim}" if wrong.ndim > 1 else "the vector"
            yield _Along(said, size, places, right, _what(pair, touched, dim))


def _repeated(pair: Pair) -> Iterator[Said]:
    """Wrong at those places alone that a tensor of indices names more than once."""
    for along in _along(pair):
        for name, index in pair.difference.indices.items():
            count = torch.bincount(index.reshape(-1).clamp(min=0), minlength=along.size)
            if all(count[k] > 1 for k in along.wrong) and all(count[k] < 2 for k in along.right):
                tail = f"which {name} names more than once: all of its terms are to be added"
                yield f"{along.named}, {tail}."


def _blocks(pair: Pair) -> Iterator[Said]:
    """Right but for a part that is a range of one dimension."""
    for along in _along(pair):
        places, tail = along.wrong, f"along {along.said}{along.tail}."
        if along.right[-1] < places[0]:
            yield f"Right but for the last {along.size - places[0]} of {along.size} {tail}"
        elif places[-1] < along.right[0]:
            yield f"Right but for the first {places[-1] + 1} of {along.size} {tail}"
        elif len(places) <= max(1, along.size // 4):
            yield f"{along.named}."


def _scattered(pair: Pair) -> Iterator[Said]:
    """Right but for some entries, all wrong in the same way, as beyond a threshold."""
    wrong = (pair.got - pair.expected).abs() > pair.difference.close * pair.size
    wrong &= pair.known
    count, every = int(wrong.sum()), int(pair.known.sum())
    if 1 < count < every:
        part = Pair(pair.expected[wrong], pair.got[wrong], pair.known[wrong], pair.difference)
        said = first_true(part, (_zero, _factor, _some_factor, _signs, _offset))
        if said:
            yield f"Right but for {count} of {every} entries, where {said[0].lower()}{said[1:]}"


def _what(pair: Pair, touched: torch.Tensor, dim: int) -> str:
    """What stands in the wrong part, where that has a name."""
    places = touched.nonzero().reshape(-1)
    known = pair.known.index_select(dim, places)
    if not known.any():
        return ""
    part = Pair(pair.expected.index_select(dim, places), pair.got.index_select(dim, places),
                 known, pair.difference)  # fmt: skip
    said = first_true(part, (_zero, _factor, _some_factor))
    return f", where {said[0].lower()}{said[1:-1]}" if said else ""


def lowered(pair: Pair) -> Iterator[Said]:
    """Off by no more than what backward reads is rounded by."""
    gap = float((pair.got - pair.expected)[pair.known].abs().max() / pair.size)
    for name, dtype in pair.difference.lowered.items():
        if _NOTHING < gap <= _OPERATIONS * torch.finfo(dtype).eps:
            yield (
                f"Backward reads {name} in {str(dtype).removeprefix('torch.')}, a lower precision "
                f"than that of the arguments: got is off by {100 * gap:.2g} % of the largest entry "
                "at most."
            )


def _nearly(pair: Pair) -> Iterator[Said]:
    """Off by little at most entries."""
    gaps = (pair.got - pair.expected)[pair.known].abs() / pair.size
    gap, off = float(gaps.max()), int((gaps > _NOTHING).sum())
    if pair.difference.close < _LITTLE / 2 and gap < _LITTLE and 2 * off > len(gaps):
        small = [f"{name} = {n:.4g}" for name, n in pair.difference.numbers.items() if 0 < n < 0.1]
        what = f" ({small[0]})" if small else ""
        yield (
            f"Got is off by {100 * gap:.2g} % of the largest entry at most: a small constant{what} "
            "or term that is left out of one of the two, a lower precision, or a tolerance."
        )


def _offset(pair: Pair) -> Iterator[Said]:
    gap = (pair.got - pair.expected)[pair.known]
    if len(gap) > 2 and _is_constant(gap):
        yield f"Got is expected {complex(gap.mean()).real:+.4g} at every entry."


# These say all that a mend needs to know; the others, where the numbers are wrong and how much.
EXACT: tuple[Rule, ...] = (_zero, _factor, _arranged, _terms, _factors, _reduced)
RULES: tuple[Rule, ...] = (
    *EXACT, _some_factor, _rows, lowered, _statistics, _nearly, _repeated, _blocks, _signs,
    _scattered, _offset, _multiples,
)  # fmt: skip
