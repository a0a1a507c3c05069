"""`NumberFormat`, described by its bits, and the one table of formats that all else reads."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal._arguments import checked

__all__ = [
    "BFLOAT16",
    "E2M1",
    "E4M3",
    "E4M3_FNUZ",
    "E5M2",
    "E5M2_FNUZ",
    "FLOAT16",
    "FLOAT32",
    "FORMATS",
    "INT4",
    "INT8",
    "KNOWN",
    "SCALED",
    "NumberFormat",
    "Overflow",
]

Overflow = Literal["saturate", "cast"]

_MANTISSA, _BIAS = 52, 1023  # of float64


@checked
@dataclass(frozen=True)
class NumberFormat:
    r"""A binary floating-point format with subnormal numbers.

    A normal value is :math:`(-1)^s \, 2^{e - b} \, (1 + m / 2^M)`, and float64 has it, too: in
    that values are rounded.

    Arguments:
        name: what it is called in tables.
        exponent_bits: the number of exponent bits, 1 to 11; with one the values are evenly spaced.
        mantissa_bits: the number of stored mantissa bits M, 0 to 52.
        bias: the exponent bias b.
        largest: the largest finite value.
        infinite: whether it has infinities.
        signed_zero: whether it has a negative zero.
        dtype: torch's dtype for it, if there is one.

    Raises:
        ArgumentTypeError: a number of bits, a bias or a largest value of another type.
        ArgumentError: they contradict each other, or float64 does not have the values.

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

    per: ClassVar[str] = "value"  # nothing is shared, and nothing of the past counts
    history: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if not (1 <= self.exponent_bits <= 11 and 0 <= self.mantissa_bits <= _MANTISSA):
            raise ArgumentError(
                "A number format cannot have these numbers of bits.",
                given=f"exponent_bits={self.exponent_bits}, mantissa_bits={self.mantissa_bits}",
                expected="1 to 11 and 0 to 52, as float64 has, in which values are rounded",
            )
        code = self.largest_exponent + self.bias  # of the largest value's binade
        if not (self.largest > 0 and self._steps.is_integer() and 0 < code < 2**self.exponent_bits):
            raise ArgumentError(
                f"The largest value of {self.name} is not one of its values.",
                given=f"largest={self.largest}, mantissa_bits={self.mantissa_bits}, "
                f"exponent_bits={self.exponent_bits}, bias={self.bias}",
            )
        if self.smallest_exponent - self.mantissa_bits < 1 - _BIAS - _MANTISSA:
            raise ArgumentError(
                f"The smallest values of {self.name} are not those of float64.",
                given=f"bias={self.bias}, mantissa_bits={self.mantissa_bits}",
                expected=f"bias + mantissa_bits up to {_BIAS + _MANTISSA}",
            )

    @property
    def bits(self) -> int:
        """The number of bits of one value."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def _steps(self) -> float:
        """How many of the largest binade's quanta the largest value is."""
        return self.largest / 2.0 ** (self.largest_exponent - self.mantissa_bits)

    @property
    def smallest_exponent(self) -> int:
        """The exponent, to base 2, of the smallest normal value."""
        return 1 - self.bias

    @property
    def largest_exponent(self) -> int:
        """The exponent, to base 2, of the largest value."""
        return math.frexp(self.largest)[1] - 1

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
        return int(self._steps) % 2 == 1

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

    def along(self, dim: int) -> Self:
        """The same: values share nothing."""
        return self

    def round(
        self, values: Tensor, noise: Tensor | None = None, overflow: Overflow = "saturate"
    ) -> Tensor:
        """Return real values rounded, as `round_values` does."""
        if noise is None and self._is_cast_of(values):
            return self._cast(values.detach(), overflow)
        wide = values.to(torch.float64)
        steps = wide / (quantum := self._quantum(wide.detach()))
        if noise is None:
            steps.round_()
        else:
            size = steps.abs()
            below = torch.floor(size)
            steps = torch.copysign(below + (noise >= 1 - (size - below)), steps)
        rounded = steps.mul_(quantum)
        if overflow == "saturate":
            rounded = torch.where(wide.isinf(), wide, rounded.clamp(-self.largest, self.largest))
        else:
            beyond = torch.copysign(torch.full_like(wide, self.beyond), wide)
            rounded = torch.where(rounded.abs() > self.largest, beyond, rounded)
        if not self.signed_zero:
            rounded = rounded + 0.0  # -0 + 0 is +0
        return rounded.to(values.dtype)

    def _quantum(self, wide: Tensor) -> Tensor | float:
        """The distance between neighbours at each value; each step of it is exact."""
        if self.exponent_bits == 1:
            return self.smallest
        binade = torch.div(wide, torch.frexp(wide).mantissa.mul_(2))
        binade = binade.nan_to_num(0.0).clamp(self.smallest_normal)  # of zero and infinity, too
        return binade.mul_(2.0**-self.mantissa_bits)

    def _is_cast_of(self, values: Tensor) -> bool:
        """Whether torch's own cast gives the same numbers, in a quarter of the time.

        From float64 it rounds twice, by float32, and FNUZ are left to us for what becomes of
        numbers just below zero. A compiler leaves out casts there and back.
        """
        exact = values.dtype in (torch.float32, torch.bfloat16, torch.float16)
        known = self.dtype is not None and self.signed_zero
        return exact and known and not (values.requires_grad or torch.compiler.is_compiling())

    def _cast(self, values: Tensor, overflow: Overflow) -> Tensor:
        single = values.to(torch.float32)  # bfloat16 itself has no 65504 to hold values at
        if overflow == "saturate":
            held = single.clamp(-self.largest, self.largest)
            single = torch.where(single.isinf(), single, held.to(self.dtype).to(torch.float32))
            return single.to(values.dtype)
        return single.to(self.dtype).to(values.dtype)

    def __str__(self) -> str:
        return self.name


_MOST = float(torch.finfo(torch.bfloat16).max), float(torch.finfo(torch.float32).max)

# fmt: off
#   name, exponent bits, mantissa bits, bias, largest, infinities, negative zero, torch's dtype
_ROWS: tuple[tuple[Any, ...], ...] = (
    ("fp32", 8, 23, 127, _MOST[1], True, True, torch.float32),
    ("fp16", 5, 10, 15, 65504.0, True, True, torch.float16),
    ("bf16", 8, 7, 127, _MOST[0], True, True, torch.bfloat16),
    ("E4M3", 4, 3, 7, 448.0, False, True, torch.float8_e4m3fn),
    ("E4M3 FNUZ", 4, 3, 8, 240.0, False, False, torch.float8_e4m3fnuz),
    ("E5M2", 5, 2, 15, 57344.0, True, True, torch.float8_e5m2),
    ("E5M2 FNUZ", 5, 2, 16, 57344.0, False, False, torch.float8_e5m2fnuz),
    ("E3M2", 3, 2, 3, 28.0),
    ("E2M3", 2, 3, 1, 7.5),
    ("E2M1", 2, 1, 1, 6.0),  # torch has a packed dtype for it and no conversion
    # With one exponent bit values are evenly spaced: whole numbers. They are of use under a scale.
    ("int8", 1, 6, -5, 127.0, False, False),
    ("int4", 1, 2, -1, 7.0, False, False),
)

#   name, element, per: a tensor, a channel or so many neighbours, the format of their scale
_SCALED_ROWS: tuple[tuple[str, str, Any, Any], ...] = (
    ("MXFP8", "E4M3", 32, "E8M0"),
    ("MXFP8 E5M2", "E5M2", 32, "E8M0"),
    ("MXFP6", "E2M3", 32, "E8M0"),
    ("MXFP6 E3M2", "E3M2", 32, "E8M0"),
    ("MXFP4", "E2M1", 32, "E8M0"),
    ("NVFP4", "E2M1", 16, "E4M3"),
    ("E4M3 tensor", "E4M3", "tensor", "float32"),
    ("E5M2 tensor", "E5M2", "tensor", "float32"),
    ("E4M3 channel", "E4M3", "channel", "float32"),
    ("int8 tensor", "int8", "tensor", "float32"),
    ("int8", "int8", "channel", "float32"),
    ("int4", "int4", 32, "float32"),
)
# fmt: on

_TABLE = {row[0]: NumberFormat(*row) for row in _ROWS}
# Asked of torch, whose versions differ: E4M3 saturates from 2.12 on, and was NaN before.
_BEYOND: dict[torch.dtype | None, float] = {
    known.dtype: float(torch.tensor(torch.inf, device="cpu").to(known.dtype))
    for known in _TABLE.values()
    if known.dtype is not None
}
KNOWN = tuple(_TABLE.values())
SCALED = tuple((name, _TABLE[element], *rest) for name, element, *rest in _SCALED_ROWS)
"""What a `ScaledFormat` is made from: this file has none, as a scale is rounded by the table."""

FLOAT32, FLOAT16, BFLOAT16 = (_TABLE[name] for name in ("fp32", "fp16", "bf16"))
E4M3, E5M2, E2M1 = (_TABLE[name] for name in ("E4M3", "E5M2", "E2M1"))
E4M3_FNUZ, E5M2_FNUZ = (_TABLE[f"{name} FNUZ"] for name in ("E4M3", "E5M2"))
INT8, INT4 = _TABLE["int8"], _TABLE["int4"]

FORMATS = (FLOAT16, BFLOAT16, E4M3, E4M3_FNUZ, E5M2, E5M2_FNUZ, E2M1)
"""The formats that advice is given for.

OCP: "OCP 8-bit Floating Point Specification" 1.0 (E4M3, E5M2) and "OCP Microscaling Formats"
1.0 (E2M1). FNUZ, finite and without a negative zero: Noune et al., "8-bit Numerical Formats for
Deep Neural Networks" (2022, https://arxiv.org/abs/2206.02915).
"""
