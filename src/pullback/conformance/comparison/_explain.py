"""Say in words how one tensor differs from another: the first relation that fits all entries.

Each rule yields sentences, or claims: a sentence with what equals the expected numbers if it is
true. What a change of `_changes` mends is said first: that is all a mend needs to know.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pullback.conformance.comparison._changes import (
    CLOSE,
    Claim,
    Difference,
    Pair,
    Rule,
    Said,
    are_close,
    changes,
    factor_of,
    factors,
    first_true,
    is_factor,
    is_named,
    ratio_of,
)

__all__ = ["EXACT", "FACTS", "RULES", "Difference", "explain"]

_LITTLE = 0.05
_NOTHING = 1e-5
_BY_CHANCE = 1e-2
# How many times the rounding of an operand may be found in what is computed of it.
_OPERATIONS = 8


def _not_finite(difference: Difference) -> str:
    got = difference.got
    if got is None or not difference.expected.isfinite().all():
        return ""
    bad = ~got.isfinite()
    kind = "NaN" if bool(got.isnan().any()) else "infinite"
    return f"{int(bad.sum())} of {bad.numel()} entries got are {kind}; expected are finite numbers."


def _zero(pair: Pair) -> Iterator[Said]:
    if not pair.got[pair.known].any():
        yield "Got is zero everywhere."


def _factor(pair: Pair) -> Iterator[Said]:
    """One factor for all entries."""
    yield from _whole(factors(pair))
    factor = factor_of(pair)
    if pair.tells_ratios and factor and is_factor(pair, factor):
        yield pair.got * factor, f"Got is {1 / factor:.4g} x expected."


def _whole(claims: Iterator[Claim]) -> Iterator[Said]:
    """Claims as whole sentences."""
    yield from ((tensor, f"{said}.") for tensor, said in claims)


def _repaired(pair: Pair) -> Iterator[Said]:
    """What is right once one thing is done with it."""
    yield from _whole(changes(pair))


def _repaired_but_for_a_factor(pair: Pair) -> Iterator[Said]:
    expected = pair.expected[pair.known]
    if len(expected) < 3 or first_true(pair, (_factor,)):
        return
    for other, said in changes(pair):
        ratio = ratio_of(expected, other[pair.known])
        if ratio:
            yield other / ratio, f"{said}, and {ratio:.4g} times as large."


def _terms(pair: Pair) -> Iterator[Said]:
    """Too much or too little of one of several terms."""
    for name, term in pair.takes(pair.difference.parts):
        share = ratio_of(term[pair.known], (pair.got - pair.expected + term)[pair.known])
        if share and (pair.tells_ratios or is_named(pair.difference, share)):
            said = f"The term of {name} is {share:.4g} x what it should be."
            yield pair.got + (1 - share) * term, said


def _others(pair: Pair) -> Iterator[Said]:
    """The gradient of another input, or the like."""
    for name, term in pair.takes(pair.difference.others):
        other = Pair(term, pair.got, pair.known, pair.difference)
        if term.any() and other.equal(pair.got):
            yield f"Got is {name}."
        elif term.any() and other.equal(-pair.got):
            yield f"Got is minus {name}."


def _multiples(pair: Pair) -> Iterator[Said]:
    """Off by a multiple of a tensor, another one for each row: a sum in its term is wrong."""
    for name, tensor in pair.takes(pair.difference.hand):
        for dim, size in enumerate(tensor.shape):
            if size > 2 and tensor.numel() > size and _is_off_by(pair, tensor, [dim]):
                yield (
                    f"Got is off by a multiple of {name}, by another one for each row along "
                    f"dimension {dim}: the sum that this term is multiplied by is wrong."
                )


def _statistics(pair: Pair) -> Iterator[Said]:
    """Off by a multiple of a tensor and a constant: a statistic of it is taken for a constant.

    The derivative of a variance by x_i is a multiple of x_i - mean(x), that of a mean a constant.
    """
    for name, tensor in pair.takes(pair.difference.hand):
        for dims, where in (([*range(tensor.ndim)], ""), ([-1], " along its last dimension")):
            few = not tensor.ndim or math.prod(tensor.shape[d] for d in dims) < 5
            if not few and _is_off_by(pair, tensor, dims, constant=True):
                yield (
                    f"Got is off by a multiple of {name} and a constant{where}: the derivative "
                    "through its mean, variance or the like is missing."
                )


def _is_off_by(
    pair: Pair, tensor: torch.Tensor, dims: list[int], *, constant: bool = False
) -> bool:
    """Whether the error is a multiple of a tensor along dimensions, with a constant or without."""
    error = pair.got - pair.expected
    if error.is_complex() or not bool(pair.known.all()):
        return False
    mean = error.mean(dims, keepdim=True).expand_as(error) * constant
    away = tensor - tensor.mean(dims, keepdim=True) * constant
    norm = away.square().sum(dims, keepdim=True)
    if not bool(norm.all()) or (constant and are_close(error, mean, pair.difference.close)):
        return False
    share = (error * away).sum(dims, keepdim=True) / norm
    return are_close(error, share * away + mean, pair.difference.close)


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
    """A sum along a dimension that is not taken."""
    for name, tensor in pair.difference.hand.items():
        wide = tensor.detach().to("cpu", pair.expected.dtype)
        for dim in range(wide.ndim):
            if wide.shape[dim] > 1:
                kinds = {"first entry": wide.select(dim, 0), "last entry": wide.select(dim, -1)}
                seen = [k for k, v in kinds.items() if v.shape == pair.got.shape
                        and are_close(v, pair.got, pair.difference.close)]  # fmt: skip
                tail = f"got is its {seen[0]}" if seen else "got is not"
                bare = name.removeprefix("the ")
                yield wide.sum(dim), f"Expected is the sum of {bare} along dimension {dim}; {tail}."


def _signs(pair: Pair) -> Iterator[Said]:
    if not pair.expected.is_complex() and are_close(
        pair.got.abs()[pair.known], pair.expected.abs()[pair.known], pair.difference.close
    ):
        wrong = int((pair.got.sign() != pair.expected.sign())[pair.known].sum())
        yield f"Got has the right size, and the wrong sign at {wrong} of {int(pair.known.sum())}."


@dataclass(frozen=True)
class _Along:
    """Where along one dimension something is wrong."""

    said: str  # the dimension, in words
    size: int  # how many places it has
    wrong: list[int]  # the places with a wrong entry
    right: list[int]  # the places that are known to have none
    tail: str  # what stands in the wrong part, where that has a name
    whole: bool  # whether all that is known there is wrong

    @property
    def named(self) -> str:
        shown = ", ".join(map(str, self.wrong[:4])) + (", ..." if len(self.wrong) > 4 else "")
        return f"Right but for index {shown} of {self.size} along {self.said}{self.tail}"


def _along(pair: Pair) -> Iterator[_Along]:
    """The dimensions along which some places are wrong and some are right.

    Where entries are a sample, a place whose wrong ones are not among them is not said to be right:
    so many that are right are there by chance with probability (1 - share of wrong ones) ** many.
    """
    wrong, whole = pair.wrong, bool(pair.known.all())
    for dim, size in enumerate(wrong.shape):
        rows = (t.movedim(dim, 0).reshape(size, -1).sum(1) for t in (wrong, pair.known))
        bad, seen = (row.tolist() for row in rows)
        places = [k for k in range(size) if bad[k]]
        right = [k for k in range(size) if seen[k] and not bad[k]]
        share = sum(bad[k] for k in places) / max(sum(seen[k] for k in places), 1)
        if not whole and any((1 - share) ** seen[k] > _BY_CHANCE for k in right):
            continue
        if right and places:
            said = f"dimension {dim}" if wrong.ndim > 1 else "the vector"
            whole = torch.equal(*(t.movedim(dim, 0)[places] for t in (wrong, pair.known)))
            tail = _where(pair, (slice(None),) * dim + (places,))
            yield _Along(said, size, places, right, tail, whole)


def _of_rows(index: torch.Tensor) -> torch.Tensor:
    """An index without dimensions along which it says the same for all entries of a row."""
    while index.ndim > 1 and torch.equal(index, index[..., :1].expand_as(index)):
        index = index[..., 0]
    return index


def _repeated(pair: Pair) -> Iterator[Said]:
    """Wrong at those places alone that a tensor of indices names more than once."""
    hand = pair.difference.hand.items()
    indices = {n: _of_rows(t) for n, t in hand if t.dtype == torch.int64 and t.numel()}
    for along in _along(pair):
        for name, index in indices.items():
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
        elif len(places) <= max(1, along.size // (2 if along.whole else 4)):
            yield f"{along.named}."


def _named(pair: Pair) -> Iterator[Said]:
    """Wrong at those entries alone that a tensor of indices names, one in each row."""
    for name, index in pair.difference.hand.items():
        fits = index.dtype == torch.int64 and index.shape == pair.wrong.shape[:-1]
        size = pair.wrong.shape[-1] if pair.wrong.ndim else 0
        if not fits or not index.numel() or not bool(((index >= 0) & (index < size)).all()):
            continue
        named = torch.zeros_like(pair.wrong).scatter_(-1, index.cpu()[..., None], value=True)
        if not named[pair.known].all() and torch.equal(named & pair.known, pair.wrong):
            tail = _where(pair, pair.wrong, (_zero, _factor, _signs, _offset))
            yield f"Right but for the entries that {name} names, one in each row{tail}."


def _scattered(pair: Pair) -> Iterator[Said]:
    """Right but for some entries, all wrong in the same way, as beyond a threshold."""
    count, every = int(pair.wrong.sum()), int(pair.known.sum())
    if 1 < count < every:
        tail = _where(pair, pair.wrong, (_zero, _factor, _signs, _offset))
        if tail:
            yield f"Right but for {count} of {every} entries{tail}."


def _where(pair: Pair, part: Any, rules: Sequence[Rule] = (_zero, _factor)) -> str:
    """How one part differs, where that has a name."""
    within = Pair(pair.expected[part], pair.got[part], pair.known[part], pair.difference)
    said = first_true(within, rules) if within.known.any() else ""
    return f", where {said[0].lower()}{said[1:-1]}" if said else ""


def _lowered(pair: Pair) -> Iterator[Said]:
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
    if len(gap) > 2 and bool((gap - gap[0]).abs().max() <= CLOSE * gap.abs().max()):
        yield f"Got is expected {complex(gap.mean()).real:+.4g} at every entry."


# These say all that a mend needs to know; the others, where the numbers are wrong and how much.
EXACT: tuple[Rule, ...] = (
    _zero, _repaired, _repaired_but_for_a_factor, _reduced,
)  # fmt: skip
RULES: tuple[Rule, ...] = (
    *EXACT, _terms, _others, _factor, _rows, _lowered, _statistics, _nearly, _repeated, _named,
    _blocks, _signs, _scattered, _offset, _multiples,
)  # fmt: skip
# Those that say where and how much, and guess at no cause.
FACTS = tuple(rule for rule in RULES if rule not in (_statistics, _nearly, _multiples))


def explain(difference: Difference, rules: Sequence[Rule] = RULES) -> str:
    """One sentence that says how the numbers got differ from those expected.

    Arguments:
        difference: what is compared.
        rules: the relations that are tried.

    Returns:
        The sentence, or an empty text where the two are equal or no relation is recognised.

    Example:
        >>> expected = torch.tensor([1.0, 2.0, 3.0])
        >>> explain(Difference(expected, -expected))
        'Got is expected with the other sign.'
        >>> explain(Difference(expected, expected / 64, sizes={"dimension 0 of args[0]": 64}))
        'Got is expected / 64, and 64 is the size of dimension 0 of args[0].'
    """
    expected, got = difference.expected, difference.got
    if got is None:
        return "Got is None: backward returned no gradient."
    if expected.shape != got.shape:
        return f"Got has shape {tuple(got.shape)}, expected is {tuple(expected.shape)}."
    if not expected.numel() or any(
        t.layout is not torch.strided or t.is_quantized for t in (expected, got)
    ):
        return ""
    pair = Pair.of(difference)
    if pair is None:
        return _not_finite(difference)
    if pair.equal(pair.got):
        return first_true(pair, (_lowered,))
    return first_true(pair, rules)
