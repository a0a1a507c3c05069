"""`NumberFormat`: a small floating-point format, described by its bits."""

from dataclasses import dataclass

import torch

from pullback.errors import ArgumentError

__all__ = [
    "BFLOAT16",
    "E2M1",
    "E4M3",
    "E4M3_FNUZ",
    "E5M2",
    "E5M2_FNUZ",
    "FLOAT16",
    "FORMATS",
    "INT4",
    "INT8",
    "NumberFormat",
]


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

FLOAT16 = NumberFormat("fp16", 5, 10, 15, 65504.0, infinite=True, dtype=torch.float16)
BFLOAT16 = NumberFormat(
    "bf16", 8, 7, 127, float(torch.finfo(torch.bfloat16).max), infinite=True, dtype=torch.bfloat16
)
E4M3 = NumberFormat("E4M3", 4, 3, 7, 448.0, dtype=torch.float8_e4m3fn)
E5M2 = NumberFormat("E5M2", 5, 2, 15, 57344.0, infinite=True, dtype=torch.float8_e5m2)
E4M3_FNUZ = NumberFormat(
    "E4M3 FNUZ", 4, 3, 8, 240.0, signed_zero=False, dtype=torch.float8_e4m3fnuz
)
E5M2_FNUZ = NumberFormat(
    "E5M2 FNUZ", 5, 2, 16, 57344.0, signed_zero=False, dtype=torch.float8_e5m2fnuz
)
E2M1 = NumberFormat("E2M1", 2, 1, 1, 6.0)
"""Four bits; torch has a packed dtype for it and no conversion."""
INT8 = NumberFormat("int8", 1, 6, -5, 127.0, signed_zero=False)
"""The whole numbers to 127: with one exponent bit, values are evenly spaced."""
INT4 = NumberFormat("int4", 1, 2, -1, 7.0, signed_zero=False)
"""The whole numbers to 7. Both are of use under a scale."""

FORMATS: tuple[NumberFormat, ...] = (
    FLOAT16,
    BFLOAT16,
    E4M3,
    E4M3_FNUZ,
    E5M2,
    E5M2_FNUZ,
    E2M1,
)
"""The formats that advice is given for.

OCP: "OCP 8-bit Floating Point Specification" 1.0 (E4M3, E5M2) and "OCP Microscaling Formats"
1.0 (E2M1). FNUZ, finite and without a negative zero: Noune et al., "8-bit Numerical Formats for
Deep Neural Networks" (2022, https://arxiv.org/abs/2206.02915).
"""
