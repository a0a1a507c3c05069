"""`scale_gradient`: the value as it is, the gradient times a factor."""

import functools
from typing import Any

import torch
from torch import Tensor

from pullback.gradients._check import check_tensor
from pullback.gradients._factor import Factor, check_factor, multiply
from pullback.gradients._module import module_of
from pullback.tensor import Function

__all__ = ["ScaleGradient", "ScaleGradientFunction", "scale_gradient"]


class ScaleGradientFunction(Function):
    """The Function behind `scale_gradient` and `reverse_gradient`: ``x -> x``, ``g -> g f``."""

    gradient = "surrogate"
    _direct = True

    @staticmethod
    def forward(x: Tensor, factor: Factor) -> Tensor:
        """Return a view of ``x``: no copy."""
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the factor."""
        factor = inputs[1]
        if isinstance(factor, Tensor):
            ctx.save_for_backward(factor)
            ctx.factor = None
        else:
            ctx.factor = factor

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the scaled cotangent, and the zero that a factor gets."""
        factor = ctx.factor
        if factor is None:
            (factor,) = ctx.saved_tensors
        return (
            multiply(cotangent, factor) if ctx.needs_input_grad[0] else None,
            torch.zeros_like(factor) if ctx.needs_input_grad[1] else None,
        )


def scale_gradient(x: Tensor, factor: Factor, *, allow_nan: bool = False) -> Tensor:
    r"""Return ``x`` unchanged and multiply the gradient that flows back to it by a factor.

    .. math:: y = x, \qquad \bar x = f \, \bar y

    The result shares its memory with ``x``. Changing it in place while gradients are recorded
    raises; clone it first. A complex gradient, in torch's convention
    :math:`\partial L/\partial\Re x + i\,\partial L/\partial\Im x`, is multiplied by the factor
    as given, not by its conjugate. The tangent in forward mode is that of the transposed map.

    Arguments:
        x: shape (...), any floating or complex dtype.
        factor: a number, or a tensor that broadcasts to ``x``. It is used in float32 or wider
            whatever the dtype of ``x``, and real for a real ``x``. As the value does not depend
            on it, a factor that requires a gradient gets exactly zero at first order; at second
            order it is differentiated as the backward is written.
        allow_nan: take NaN and infinite factors, which are refused otherwise. Values of tensors
            are looked at on the CPU only, outside of torch.compile and torch.func.

    Returns:
        A view of ``x``.

    Raises:
        ArgumentTypeError: ``x`` or the factor has no usable type.
        ArgumentError: the factor is NaN or infinite, or does not broadcast.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import scale_gradient
        >>> x = torch.ones(2, requires_grad=True)
        >>> scale_gradient(x, 0.5).sum().backward()
        >>> x.grad
        tensor([0.5000, 0.5000])
    """
    check_tensor(x, "scale_gradient")
    factor = check_factor(factor, x, "scale_gradient", allow_nan=allow_nan)
    return ScaleGradientFunction.apply(x, factor)


ScaleGradient = module_of(
    scale_gradient,
    ">>> ScaleGradient(2.0)(torch.ones(1))\ntensor([1.])",
    functools.partial(check_factor, x=None),
)
