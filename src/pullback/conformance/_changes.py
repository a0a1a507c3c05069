"""Two tensors that are compared, and what may be done with one so that it is right."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch

__all__ = [
    "CLOSE", "NAMELESS", "Change", "Difference", "Pair", "Rule", "Said", "are_close", "changes",
    "factors", "first_true", "is_alike", "is_named", "is_same", "ratio_of",
]  # fmt: skip

CLOSE = 1e-3
_EXACT = 1e-5  # many changes are tried: none may be right by chance
_WIDE = {True: torch.complex128, False: torch.float64}

# A sentence that is true, or one that is where a tensor equals what was expected.
Said = str | tuple[torch.Tensor, str]


@dataclass(frozen=True)
class Difference:
    """What was expected and what was got, and what may explain why they differ."""

    expected: torch.Tensor  # the right numbers
    got: torch.Tensor | None  # the numbers seen, or ``None`` where backward returned no gradient
    # where ``expected`` is known, a mask; ``None`` for everywhere
    known: torch.Tensor | None = None
    # numbers that a factor may be, by what they are
    sizes: Mapping[str, int] = field(default_factory=dict)
    # tensors of the same shape that may be taken for it, missing or one too many
    others: Mapping[str, torch.Tensor] = field(default_factory=dict)
    # the terms that what is expected is the sum of
    parts: Mapping[str, torch.Tensor] = field(default_factory=dict)
    # what backward has at hand, arguments, outputs, cotangents, what was saved
    hand: Mapping[str, torch.Tensor] = field(default_factory=dict)
    # numbers among the arguments
    numbers: Mapping[str, float] = field(default_factory=dict)
    # how many entries of an argument are used, and of how many, by what these are
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # dtypes of what backward reads in a lower precision than that of the arguments
    lowered: Mapping[str, torch.dtype] = field(default_factory=dict)
    close: float = CLOSE  # how far apart equal numbers may be, beside the largest

    @property
    def factors(self) -> Mapping[str, float]:
        """The numbers among the arguments that tell something as a factor."""
        return {name: n for name, n in self.numbers.items() if n not in (0, 1, -1)}

    @property
    def sharp(self) -> "Difference":
        """The same, for what is tried by the hundred."""
        return replace(self, close=_EXACT) if self.close <= CLOSE else self


@dataclass(frozen=True)
class Pair:
    """Finite numbers in one wide dtype."""

    expected: torch.Tensor
    got: torch.Tensor
    known: torch.Tensor
    difference: Difference

    @classmethod
    def of(cls, difference: Difference) -> "Pair | None":
        one, other = difference.expected, difference.got
        if other is None:
            return None
        dtype = _WIDE[one.is_complex() or other.is_complex()]
        expected, got = one.detach().to("cpu", dtype), other.detach().to("cpu", dtype)
        known = difference.known
        known = torch.ones_like(expected, dtype=torch.bool) if known is None else known.cpu()
        if not known.any() or not (expected[known].isfinite().all() and got.isfinite().all()):
            return None
        return cls(expected, got, known, difference)

    @property
    def size(self) -> float:
        return float(self.expected[self.known].abs().max())

    @property
    def wrong(self) -> torch.Tensor:
        """Where the numbers differ, a mask."""
        gap = (self.got - self.expected).abs()
        return self.known & (gap > self.difference.close * self.size)

    @property
    def tells_ratios(self) -> bool:
        """Whether a ratio may come again: of two numbers there always is one."""
        return int((self.expected[self.known] != 0).sum()) > 1

    def equal(self, other: torch.Tensor) -> bool:
        """Whether a tensor is what was expected, where that is known."""
        if other.shape != self.expected.shape:
            return False
        known, close = self.known, self.difference.close
        return are_close(self.expected[known], other[known], close)

    def share_of(self, change: torch.Tensor) -> float:
        """How much of a change brings what was got closest to what was expected."""
        return ratio_of(change[self.known], (self.expected - self.got)[self.known])

    def takes(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Those of the shape compared, in its dtype."""
        for name, tensor in tensors.items():
            fits = tensor.shape == self.expected.shape and tensor.isfinite().all()
            if fits and tensor.is_complex() <= self.expected.is_complex():
                yield name, tensor.detach().to("cpu", self.expected.dtype)


def are_close(one: torch.Tensor, other: torch.Tensor, close: float) -> bool:
    """Whether tensors are equal beside the largest entry of the first."""
    return bool((one - other).abs().max() <= close * one.abs().max())


def ratio_of(one: torch.Tensor, other: torch.Tensor) -> float:
    """By what one tensor comes closest to the other; 0 where it is zero."""
    norm = float(one.abs().square().sum())
    return complex((one.conj() * other).sum() / norm).real if norm else 0.0


def is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether one tensor may be given for the other."""
    return all(getattr(one, k) == getattr(other, k) for k in ("dtype", "device", "shape", "layout"))


def is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they hold the same numbers; of others than strided ones, whether they are one."""
    strided = one.layout is torch.strided
    return one is other or (strided and is_alike(one, other) and torch.equal(one, other))


Rule = Callable[[Pair], Iterator[Said]]


def first_true(pair: Pair, rules: Sequence[Rule]) -> str:
    """The first sentence that is true."""
    for said in itertools.chain.from_iterable(rule(pair) for rule in rules):
        if isinstance(said, str):
            return said
        if pair.equal(said[0]):
            return said[1]
    return ""


NAMELESS = 7
"""The rank of a factor that has no name."""

# Whole factors that are told as such, also as divisors.
_WHOLE = range(2, 13)


class Change(NamedTuple):
    """What may be done with a gradient that is wrong, so that it is right."""

    rank: int  # those of a lower rank are likelier
    apply: Callable[[torch.Tensor], torch.Tensor]
    said: str  # what is wrong where it is right then


def changes(pair: Pair) -> Iterator[Change]:
    """Every change of what was got that may be meant."""
    yield from factors(pair, pair.got)
    yield from _arranged(pair.got)
    yield from _with_others(pair.difference, pair.got)
    yield from _centred(pair.got)


def factors(pair: Pair, share: torch.Tensor) -> Iterator[Change]:
    """The factor that makes backward right if it is linear in the tensor."""
    factor, close = 1 + pair.share_of(share), pair.difference.close
    if abs(factor) < close:
        yield Change(5, torch.zeros_like, "Expected is zero everywhere")
    elif abs(factor + 1) < close:
        yield Change(2, torch.neg, "Got is expected with the other sign")
    elif abs(factor - 1) > 10 * close:
        yield from _named(pair.difference, factor)
        said = f"Got is {1 / factor:.4g} x expected"
        yield Change(NAMELESS, lambda t: t * factor, said)


def _named(difference: Difference, factor: float) -> Iterator[Change]:
    """A factor or a divisor that has a name."""
    right = "-expected" if factor < 0 else "expected"
    for number, text, why in _numbers(difference):
        within = f"({text})" if "/" in text else text
        if _near(abs(factor), 1 / number):
            value = math.copysign(1 / number, factor)
            said = f"Got is {text} x {right}{why}"
        elif _near(abs(factor), number):
            value = math.copysign(number, factor)
            said = f"Got is {right} / {within}{why}"
        else:
            continue
        yield Change(2, lambda t, value=value: t * value, said)
        return


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
    for name, number in difference.factors.items():
        yield abs(number), f"{abs(number):.4g}", f", and {name} is {number:.4g}"
    for whole in _WHOLE:
        yield whole, f"{whole}", ""
    for name, number in difference.factors.items():
        for value, how in ((1 - number, f"1 - {name}"), (1 + number, f"1 + {name}")):
            if value > 0:
                yield value, f"{value:.4g}", f", and {how} is {value:.4g}"
    for name, size in large:
        why = f", and {size} is the size of {name}"
        yield size - 1, f"{size - 1}", f", one less than {size}, the size of {name}"
        yield size / (size - 1), f"{size} / {size - 1}", why
        yield size**0.5, f"sqrt({size})", why


def is_named(difference: Difference, ratio: float) -> bool:
    """Whether a number is one that has a name, or its inverse."""
    named = [1.0, *(number for number, _, _ in _numbers(difference))]
    return any(_near(abs(ratio), by) for number in named for by in (number, 1 / number))


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= CLOSE * abs(other)


def _arranged(tensor: torch.Tensor) -> Iterator[Change]:
    """The same numbers at other places, or their complex conjugates."""
    for dims in itertools.combinations(range(tensor.ndim), 2):
        turned = tensor.transpose(*dims).shape
        said = f"Got is expected transposed: dimensions {dims[0]} and {dims[1]} are exchanged"
        yield Change(3, lambda t, d=dims: t.transpose(*d).reshape(t.shape), said)
        if turned != tensor.shape:
            said = f"{said}, and the shape is put back"
            yield Change(5, lambda t, d=dims, n=turned: t.reshape(n).transpose(*d), said)
    for dim in range(tensor.ndim if tensor.numel() > 1 else 0):
        said = f"Got is expected reversed along dimension {dim}"
        yield Change(5, partial(torch.flip, dims=[dim]), said)
        said = f"shifted by one along dimension {dim}"
        for shift, end in ((1, "start"), (-1, "end")):
            apply = partial(torch.roll, shifts=shift, dims=dim)
            yield Change(5, apply, f"Got is expected, {said}")
            apply = partial(_shifted, dim=dim, shift=shift)
            yield Change(5, apply, f"Expected is got {said}, with zeros at its {end}")
    if tensor.is_complex():
        said = "Got is the complex conjugate of expected"
        yield Change(3, lambda t: t.conj().resolve_conj(), said)


def _shifted(tensor: torch.Tensor, dim: int, shift: int) -> torch.Tensor:
    found = tensor.roll(shift, dim)
    found.select(dim, 0 if shift > 0 else -1).zero_()
    return found


def _with_others(difference: Difference, tensor: torch.Tensor) -> Iterator[Change]:
    """Another tensor that is missing as a factor or a term, or is one too many."""
    for name, other in difference.hand.items():
        by, bare = _fitting(other, tensor), name.removeprefix("the ")
        if by is None:
            continue
        said = f"Got is expected without the factor {bare}"
        yield Change(3, partial(torch.mul, by), said)
        said = f"Got is expected with the factor {bare} once too often"
        yield Change(3, lambda t, by=by: t / by, said)
        if by.is_complex():
            said = f"Got is expected with {bare} where its complex conjugate is meant"
            yield Change(4, partial(torch.mul, by.conj() / by), said)
    for name, other in {**difference.hand, **difference.others, **difference.parts}.items():
        by = _fitting(other, tensor)
        if by is not None and by.any():
            yield Change(6, partial(torch.add, by), f"The term of {name} is missing")
            said = f"The term of {name} is counted once too often"
            yield Change(6, lambda t, by=by: t - by, said)


def _fitting(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor | None:
    """A tensor that can be multiplied with a result, as it is or as one number for each row."""
    if tensor.is_complex() > result.is_complex():
        return None
    for view in (tensor, tensor.unsqueeze(-1)):
        with suppress(RuntimeError):  # no shapes that go together
            if torch.broadcast_shapes(view.shape, result.shape) == result.shape:
                return view.detach().to(result.device, result.dtype)
    return None


def _centred(tensor: torch.Tensor) -> Iterator[Change]:
    """Without a mean."""
    for dim in range(tensor.ndim):
        said = f"Expected is got less its mean along dimension {dim}: that term is missing"
        yield Change(5, lambda t, dim=dim: t - t.mean(dim, keepdim=True), said)
