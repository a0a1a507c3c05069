"""Rounding to a number format: to nearest even or stochastically, exactly, in any dtype."""

from typing import Any, Literal

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.gradients._check import can_look_into, check_floating
from pullback.gradients._module import ShapeFunction
from pullback.internal._arguments import checked
from pullback.tensor import Function
from pullback.tracking.formats._scaled import Format, ScaledFormat
from pullback.tracking.formats._table import NumberFormat, Overflow

__all__ = [
    "RoundGradientFunction",
    "RoundValueFunction",
    "Rounding",
    "draw_noise",
    "parts_of",
    "round_known",
    "round_values",
]

Rounding = Literal["nearest", "stochastic"]


@checked
def draw_noise(values: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return uniform numbers in [0, 1) for stochastic rounding, one for each real number.

    Arguments:
        values: shape (...), floating or complex.
        generator: where to draw from; ``None`` takes torch's own.

    Returns:
        Float32, shape (...), with a last dimension of 2 if ``values`` is complex.

    Raises:
        ArgumentTypeError: no floating or complex tensor, or no generator.
    """
    check_floating(values, "draw_noise", "values")
    shape = (*values.shape, 2) if values.is_complex() else values.shape
    return torch.rand(shape, generator=generator, device=values.device)


def parts_of(values: Tensor) -> Tensor:
    """Return the real numbers of a tensor: the parts of complex values, in a new last dimension."""
    values = values.resolve_conj().resolve_neg()
    if values.dtype == torch.complex32:  # which few operations take
        values = values.to(torch.complex64)
    return torch.view_as_real(values) if values.is_complex() else values


def round_values(
    values: Tensor,
    number_format: Format,
    noise: Tensor | None = None,
    overflow: Overflow = "saturate",
) -> Tensor:
    r"""Return the values rounded to a format, in their own dtype.

    With the quantum :math:`q = 2^{\max(e, e_{min}) - M}` of the binade of x, the result is
    :math:`q \operatorname{round}(x / q)`, to nearest even, or, of the magnitude,
    :math:`q \lfloor x/q + u \rfloor` with noise u. Computed in float64, where every step is exact:
    there is no double rounding.

    Arguments:
        values: shape (...), any floating or complex dtype; complex values are rounded by parts.
        number_format: the format; a `ScaledFormat` chooses its scales from the values.
        noise: uniform numbers from `draw_noise` for stochastic rounding; ``None`` rounds to
            nearest even. A value that the format has is never moved.
        overflow: ``"saturate"`` takes finite values beyond the largest to it, and leaves infinities
            as they are, also where the format has none: divergence stays visible. ``"cast"`` does
            what torch's cast does with both: infinity, NaN or, of E4M3, the largest value.

    Returns:
        Shape and dtype of ``values``. NaN stays NaN, also where the format has none. A dtype
        with fewer values than the format rounds once more.

    Raises:
        ArgumentError: the noise does not have the shape of the values, or is not from 0 to 1 (seen
            on the CPU alone); scales along a dimension that they do not have; another overflow.
        ArgumentTypeError: no floating or complex tensor, or no format, but the name of one.

    Example:
        >>> import torch
        >>> from pullback.tracking.formats import E4M3, round_values
        >>> round_values(torch.tensor([0.3, 17.0, 1000.0]), E4M3).tolist()
        [0.3125, 16.0, 448.0]
    """
    if not isinstance(number_format, (NumberFormat, ScaledFormat)):
        raise ArgumentTypeError(
            "round_values takes a format.",
            given=repr(number_format),
            expected="a NumberFormat or a ScaledFormat",
            mend='find_format("E4M3")',
        )
    if overflow not in ("saturate", "cast"):
        raise ArgumentError(
            "There is no such way to overflow.",
            given=f"overflow={overflow!r}",
            expected="'saturate' (the largest value) or 'cast' (what torch's cast gives)",
        )
    check_floating(values, "round_values", "values")
    if noise is not None:
        check_floating(noise, "round_values", "noise")
        expected = (*values.shape, 2) if values.is_complex() else tuple(values.shape)
        if tuple(noise.shape) != expected:
            raise ArgumentError(
                "The noise of stochastic rounding does not fit the values.",
                given=f"noise of shape {tuple(noise.shape)} for shape {tuple(values.shape)}",
                expected=f"shape {expected}",
                mend="Draw it with draw_noise(values).",
            )
        if can_look_into(noise) and not bool(((noise >= 0) & (noise < 1)).all()):
            raise ArgumentError(
                "The noise of stochastic rounding is not in [0, 1).",
                given=f"noise from {float(noise.min())} to {float(noise.max())}",
                mend="Draw it with draw_noise(values).",
            )
    if isinstance(number_format, ScaledFormat):
        number_format.check_dimension(values.dim())
    return round_known(values, number_format, noise, overflow)


def round_known(
    values: Tensor, number_format: Format, noise: Tensor | None, overflow: Overflow
) -> Tensor:
    """Return what `round_values` does of arguments that were looked at before."""
    if values.is_complex():
        parts = parts_of(values.reshape(values.shape or (1,)))
        noise = None if noise is None else noise.reshape(parts.shape)
        if isinstance(number_format, ScaledFormat) and number_format.dim < 0:
            number_format = number_format.along(number_format.dim - 1)
        rounded = number_format.round(parts, noise, overflow)
        return torch.complex(*rounded.unbind(-1)).to(values.dtype).reshape(values.shape)
    return number_format.round(parts_of(values), noise, overflow)


class RoundValueFunction(Function):
    """Round the value to a format, and pass the gradient straight through."""

    gradient = "surrogate"

    @staticmethod
    def forward(
        x: Tensor, noise: Tensor | None, number_format: Format, overflow: Overflow
    ) -> Tensor:
        """Return the rounded values."""
        return round_known(x, number_format, noise, overflow)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing: the cotangent passes as it is."""

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the cotangent."""
        return cotangent, None, None, None


class RoundGradientFunction(ShapeFunction):
    """Pass the value, and round the gradient to a format: not linear, and declared so.

    The noise of stochastic rounding is an argument, so that two backward passes agree. Its own
    derivative is straight-through.
    """

    gradient = "nonlinear"

    shape = staticmethod(RoundValueFunction.apply)
