"""Simulated number formats on tensors: the value, the gradient, or both are rounded."""

from typing import Any

from torch import Tensor

from pullback.tensor import Function
from pullback.tracking.formats._round import check_noise, round_values
from pullback.tracking.formats._scaled import Format
from pullback.tracking.formats._table import Overflow

__all__ = ["RoundGradientFunction", "RoundValueFunction"]


class RoundValueFunction(Function):
    """Round the value to a format, and pass the gradient straight through."""

    gradient = "surrogate"

    @staticmethod
    def forward(
        x: Tensor, noise: Tensor | None, number_format: Format, overflow: Overflow
    ) -> Tensor:
        """Return the rounded values."""
        return round_values(x, number_format, noise, overflow)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing: the cotangent passes as it is."""

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the cotangent."""
        return cotangent, None, None, None


class RoundGradientFunction(Function):
    """Pass the value, and round the gradient to a format: not linear, and declared so.

    The noise of stochastic rounding is an argument, so that two backward passes agree. Its own
    derivative is straight-through.
    """

    gradient = "nonlinear"

    @staticmethod
    def forward(
        x: Tensor, noise: Tensor | None, number_format: Format, overflow: Overflow
    ) -> Tensor:
        """Return a view of ``x``: no copy."""
        check_noise(x, noise)
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the format and the noise."""
        _, noise, ctx.number_format, ctx.overflow = inputs
        ctx.save_for_backward(noise)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the rounded cotangent."""
        (noise,) = ctx.saved_tensors
        rounded = RoundValueFunction.apply(cotangent, noise, ctx.number_format, ctx.overflow)
        return rounded, None, None, None
