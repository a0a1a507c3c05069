"""`NumberFormat`: a small floating-point format, described by its bits."""

import math
from dataclasses import dataclass

import torch

from pullback.errors import ArgumentError

__all__ = ["NumberFormat"]


@dataclass(frozen=True)
class NumberFormat:
    r"""A binary floating-point format with subnormal numbers.

    A normal value is :math:`(-1)^s \, 2^{e - b} \, (1 + m / 2^M)`.

    Arguments:
        name: what it is called in tables.
        exponent_bits: the number of exponent bits, >= 1; with one the values are evenly spaced.
        mantissa_bits: the number of stored mantissa bits M, >= 0.
        bias: the exponent bias b.
        largest: the largest finite value.
        infinite: whether it has infinities.
        signed_zero: whether it has a negative zero.
        dtype: torch's dtype for it, if there is one.

    Raises:
        ArgumentError: the numbers of bits or the largest value contradict each other.

    Example:
        >>> from pullback.tracking.formats import E4M3
        >>> E4M3.largest, E4M3.smallest_normal, E4M3.smallest
        (448.0, 0.015625, 0.001953125)
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest: float
    infinite: bool = False
    signed_zero: bool = True
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if self.exponent_bits < 1 or self.mantissa_bits < 0:
            raise ArgumentError(
                "A number format needs an exponent bit or more and no negative mantissa.",
                given=f"exponent_bits={self.exponent_bits}, mantissa_bits={self.mantissa_bits}",
            )
        steps = self.largest / 2.0 ** (self.largest_exponent - self.mantissa_bits)
        if steps != int(steps) or not 2**self.mantissa_bits <= steps < 2 ** (
            self.mantissa_bits + 1
        ):
            raise ArgumentError(
                f"The largest value of {self.name} is not one of its values.",
                given=f"largest={self.largest}, mantissa_bits={self.mantissa_bits}",
            )

    @property
    def bits(self) -> int:
        """The number of bits of one value."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def smallest_exponent(self) -> int:
        """The exponent, to base 2, of the smallest normal value."""
        return 1 - self.bias

    @property
    def largest_exponent(self) -> int:
        """The exponent, to base 2, of the largest value."""
        return int(torch.tensor(self.largest, dtype=torch.float64, device="cpu").log2().floor())

    @property
    def smallest_normal(self) -> float:
        """The smallest positive normal value."""
        return 2.0**self.smallest_exponent

    @property
    def smallest(self) -> float:
        """The smallest positive value, subnormal if there are mantissa bits."""
        return 2.0 ** (self.smallest_exponent - self.mantissa_bits)

    @property
    def overflow_bound(self) -> float:
        """The value halfway between the largest and what would follow it."""
        return self.largest + 2.0 ** (self.largest_exponent - self.mantissa_bits - 1)

    @property
    def overflows_at_bound(self) -> bool:
        """Whether the value at `overflow_bound` rounds up: the largest has an odd mantissa."""
        return int(self.largest / 2.0 ** (self.largest_exponent - self.mantissa_bits)) % 2 == 1

    @property
    def beyond(self) -> float:
        """What a cast makes of infinity, and of all that rounds beyond the largest value.

        Infinity, NaN, or the largest value; without a cast in torch, as torchao's casts do.
        """
        return _BEYOND.get(self.dtype, torch.inf if self.infinite else self.largest)

    @property
    def reach(self) -> tuple[float, float, float]:
        """Powers of two: to where rounding gives zero, from where values are normal, overflow."""
        limits = (self.smallest / 2, self.smallest_normal, self.overflow_bound)
        return tuple(map(math.log2, limits))  # type: ignore[return-value]

    def __str__(self) -> str:
        return self.name


_CASTS = (
    torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
)  # fmt: skip
# Asked of torch, whose versions differ: E4M3 saturates from 2.12 on, and was NaN before.
_BEYOND: dict[torch.dtype | None, float] = {
    dtype: float(torch.tensor(torch.inf, device="cpu").to(dtype)) for dtype in _CASTS
}
