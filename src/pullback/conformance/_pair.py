"""Two tensors that are compared, and what may explain why they differ."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

__all__ = ["CLOSE", "Difference", "Pair", "Rule", "Said", "are_close", "first_true",
           "is_alike", "is_same", "ratio_of"]  # fmt: skip

CLOSE = 1e-3
_EXACT = 1e-5  # many changes are tried: none may be right by chance
_WIDE = {True: torch.complex128, False: torch.float64}

# A sentence that is true, or one that is where a tensor equals what was expected.
Said = str | tuple[torch.Tensor, str]


@dataclass(frozen=True)
class Difference:
    """What was expected and what was got, and what may explain why they differ.

    Arguments:
        expected: the right numbers.
        got: the numbers seen, or ``None`` where backward returned no gradient.
        known: where ``expected`` is known, a mask; ``None`` for everywhere.
        sizes: numbers that a factor may be, by what they are.
        others: tensors of the same shape that may be taken for it, missing or one too many.
        parts: the terms that what is expected is the sum of.
        hand: what backward has at hand, arguments, outputs, cotangents, what was saved.
        numbers: numbers among the arguments, that may be such factors too.
        counts: how many entries of an argument are used, and of how many, by what these are.
        lowered: dtypes of what backward reads in a lower precision than that of the arguments.
        close: how far apart equal numbers may be, beside the largest.
    """

    expected: torch.Tensor
    got: torch.Tensor | None
    known: torch.Tensor | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[str, torch.Tensor] = field(default_factory=dict)
    parts: Mapping[str, torch.Tensor] = field(default_factory=dict)
    hand: Mapping[str, torch.Tensor] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    lowered: Mapping[str, torch.dtype] = field(default_factory=dict)
    close: float = CLOSE

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
        known = torch.ones(expected.shape, dtype=torch.bool) if known is None else known.cpu()
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
    return all(getattr(one, k) == getattr(other, k) for k in ("dtype", "device", "shape"))


def is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they hold the same numbers."""
    return is_alike(one, other) and torch.equal(one, other)


Rule = Callable[[Pair], Iterator[Said]]


def first_true(pair: Pair, rules: Sequence[Rule]) -> str:
    """The first sentence that is true."""
    for said in itertools.chain.from_iterable(rule(pair) for rule in rules):
        if isinstance(said, str):
            return said
        if pair.equal(said[0]):
            return said[1]
    return ""
