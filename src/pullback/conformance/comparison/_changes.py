"""Two tensors that are compared, and what may be done with one so that it is right."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch

__all__ = [
    "CLOSE", "Claim", "Difference", "Pair", "Rule", "Said", "are_close", "changes", "factor_of",
    "factors", "first_true", "is_alike", "is_factor", "is_named", "is_same", "ratio_of",
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


# Whole factors that are told as such, also as divisors.
_WHOLE = range(2, 13)

Claim = tuple[torch.Tensor, str]
"""What is right if a sentence is true, and the sentence, without its full stop."""


def changes(pair: Pair) -> Iterator[Claim]:
    """What may be done with what was got so that it is right, the likeliest first."""
    yield from factors(pair)
    yield from _turned(pair.got)
    yield from _with_a_factor(pair)
    yield from _arranged(pair.got)
    yield from _with_a_term(pair)


def factors(pair: Pair) -> Iterator[Claim]:
    """The factor that makes what was got right, if it is zero, minus one, or has a name."""
    factor = factor_of(pair)
    if abs(factor) < pair.difference.close:
        yield torch.zeros_like(pair.got), "Expected is zero everywhere"
    elif abs(factor + 1) < pair.difference.close:
        yield -pair.got, "Got is expected with the other sign"
    elif is_factor(pair, factor):
        yield from _named(pair, factor)


def factor_of(pair: Pair) -> float:
    """The number by which what was got comes closest to what was expected."""
    return 1 + pair.share_of(pair.got)


def is_factor(pair: Pair, factor: float) -> bool:
    """Whether a factor is another one than one."""
    return abs(factor - 1) > 10 * pair.difference.close


def _named(pair: Pair, factor: float) -> Iterator[Claim]:
    """A factor or a divisor that has a name."""
    right = "-expected" if factor < 0 else "expected"
    for number, text, why in _numbers(pair.difference):
        within = f"({text})" if "/" in text else text
        if _near(abs(factor), 1 / number):
            yield pair.got * math.copysign(1 / number, factor), f"Got is {text} x {right}{why}"
        elif _near(abs(factor), number):
            yield pair.got * math.copysign(number, factor), f"Got is {right} / {within}{why}"
        else:
            continue
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


def _turned(tensor: torch.Tensor) -> Iterator[Claim]:
    """The transpose, or the complex conjugate."""
    for dims in itertools.combinations(range(tensor.ndim), 2):
        said = f"Got is expected transposed: dimensions {dims[0]} and {dims[1]} are exchanged"
        yield tensor.transpose(*dims).reshape(tensor.shape), said
    if tensor.is_complex():
        yield tensor.conj().resolve_conj(), "Got is the complex conjugate of expected"


def _arranged(tensor: torch.Tensor) -> Iterator[Claim]:
    """The same numbers at other places, or without a mean."""
    for one, other in itertools.combinations(range(tensor.ndim), 2):
        turned = tensor.transpose(one, other).shape
        if turned != tensor.shape:
            said = f"Got is expected transposed: dimensions {one} and {other} are exchanged"
            yield tensor.reshape(turned).transpose(one, other), f"{said}, and the shape is put back"
    for dim in range(tensor.ndim if tensor.numel() > 1 else 0):
        yield tensor.flip(dim), f"Got is expected reversed along dimension {dim}"
        said = f"shifted by one along dimension {dim}"
        for shift, end in ((1, 0), (-1, -1)):
            rolled = tensor.roll(shift, dim)
            yield rolled, f"Got is expected, {said}"
            shifted = rolled.clone()
            shifted.select(dim, end).zero_()
            where = "end" if end else "start"
            yield shifted, f"Expected is got {said}, with zeros at its {where}"
    for dim in range(tensor.ndim):
        said = f"Expected is got less its mean along dimension {dim}: that term is missing"
        yield tensor - tensor.mean(dim, keepdim=True), said


def _with_a_factor(pair: Pair) -> Iterator[Claim]:
    """Another tensor that is missing as a factor, or is one too many."""
    for name, other in pair.difference.hand.items():
        by, bare = _fitting(other, pair.got), name.removeprefix("the ")
        if by is None:
            continue
        yield pair.got * by, f"Got is expected without the factor {bare}"
        yield pair.got / by, f"Got is expected with the factor {bare} once too often"
        if by.is_complex():
            said = f"Got is expected with {bare} where its complex conjugate is meant"
            yield pair.got * (by.conj() / by), said


def _with_a_term(pair: Pair) -> Iterator[Claim]:
    """Another tensor that is missing as a term, or is one too many."""
    difference = pair.difference
    for name, other in {**difference.hand, **difference.others, **difference.parts}.items():
        by = _fitting(other, pair.got)
        if by is not None and by.any():
            yield pair.got + by, f"The term of {name} is missing"
            yield pair.got - by, f"The term of {name} is counted once too often"


def _fitting(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor | None:
    """A tensor that can be multiplied with a result, as it is or as one number for each row."""
    if tensor.is_complex() > result.is_complex():
        return None
    for view in (tensor, tensor.unsqueeze(-1)):
        with suppress(RuntimeError):  # no shapes that go together
            if torch.broadcast_shapes(view.shape, result.shape) == result.shape:
                return view.detach().to(result.device, result.dtype)
    return None
