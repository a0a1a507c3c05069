"""The names of ``unit_scaling.formats``; see `pullback.compat.unit_scaling`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.gradients._check import check_floating, refuse_export
from pullback.internal._arguments import checked
from pullback.internal.torch import is_known_to_export
from pullback.tracking.formats import NumberFormat, round_values
from pullback.tracking.formats._round import RoundGradientFunction, RoundValueFunction

__all__ = ["FPFormat"]

_SINGLE = 23  # mantissa bits of float32


@checked
@dataclass
class FPFormat:
    """A floating-point format of which all codes are finite (FNUZ), and how to round to it.

    Arguments:
        exponent_bits: the number of exponent bits, 2 to 11: float64 has the values of these.
        mantissa_bits: the number of mantissa bits.
        rounding: ``"stochastic"`` or ``"nearest"``.
        srbits: bits of randomness of stochastic rounding; 0 takes all.

    Raises:
        ArgumentTypeError: a number of bits that is no whole number.
        ArgumentError: the arguments contradict each other.

    Example:
        >>> from pullback.compat.unit_scaling import FPFormat
        >>> FPFormat(4, 3).max_absolute_value, str(FPFormat(4, 3))
        (240.0, 'E4M3-SR')
    """

    exponent_bits: int
    mantissa_bits: int
    rounding: str = "stochastic"
    srbits: int = 0

    def __post_init__(self) -> None:
        exponent, mantissa, srbits = self.exponent_bits, self.mantissa_bits, self.srbits
        for wrong, problem in (
            (not 2 <= exponent <= 11, "FPFormat needs 2 to 11 exponent bits."),
            (not 0 <= mantissa <= _SINGLE, "FPFormat needs 0 to 23 mantissa bits."),
            (
                self.rounding not in ("stochastic", "nearest"),
                "FPFormat rounds 'stochastic' or 'nearest'.",
            ),
            (srbits and self.rounding != "stochastic", "srbits belong to stochastic rounding."),
            (not 0 <= srbits <= _SINGLE - mantissa, "There are not as many bits to round away."),
        ):
            if wrong:
                raise ArgumentError(problem, given=repr(self))
        if self.srbits == 0 and self.rounding == "stochastic":
            self.srbits = _SINGLE - self.mantissa_bits

    @property
    def bits(self) -> int:
        """The number of bits of one value."""
        return 1 + self.exponent_bits + self.mantissa_bits

    def __str__(self) -> str:
        short = {"stochastic": "SR", "nearest": "RN"}[self.rounding]
        return f"E{self.exponent_bits}M{self.mantissa_bits}-{short}"

    @property
    def number_format(self) -> NumberFormat:
        """The same format in our words."""
        bias = 2 ** (self.exponent_bits - 1)
        largest = 2.0 ** (bias - 1) * (2 - 2.0**-self.mantissa_bits)
        return NumberFormat(
            str(self), self.exponent_bits, self.mantissa_bits, bias, largest, signed_zero=True
        )

    @property
    def max_absolute_value(self) -> float:
        """The largest value."""
        return self.number_format.largest

    @property
    def min_absolute_normal(self) -> float:
        """The smallest positive normal value."""
        return self.number_format.smallest_normal

    @property
    def min_absolute_subnormal(self) -> float:
        """The smallest positive value."""
        return self.number_format.smallest

    def quantise(self, x: Tensor) -> Tensor:
        """Return the values rounded to the format, without a gradient.

        Arguments:
            x: shape (...), any floating or complex dtype.
        """
        noise = self._noise(x)
        return round_values(x.detach(), self.number_format, noise, "cast")

    def quantise_fwd(self, x: Tensor) -> Tensor:
        """Return the values rounded to the format, with the gradient as it is.

        Arguments:
            x: shape (...), any floating or complex dtype.

        Raises:
            UnsupportedError: torch.export with gradients.
        """
        refuse_export("FPFormat.quantise_fwd", is_known_to_export)
        return RoundValueFunction.apply(x, self._noise(x), self.number_format, "cast")

    def quantise_bwd(self, x: Tensor) -> Tensor:
        """Return the values as they are, with the gradient rounded to the format.

        Arguments:
            x: shape (...), any floating or complex dtype.

        Raises:
            UnsupportedError: torch.export with gradients.
        """
        refuse_export("FPFormat.quantise_bwd", is_known_to_export)
        return RoundGradientFunction.apply(x, self._noise(x), self.number_format, "cast")

    def _noise(self, x: Tensor) -> Tensor | None:
        check_floating(x, "FPFormat")
        if self.rounding == "nearest":
            return None
        shape = (*x.shape, 2) if x.is_complex() else x.shape
        kept = torch.randint(0, 2**self.srbits, shape, dtype=torch.int32, device=x.device)
        # The middle of each step is unbiased where there are more bits to round away than random
        # ones, as float64 has, and subnormal numbers; of others no bit is below the random ones.
        return (kept.to(torch.float64) + 0.5) / 2**self.srbits
