"""`scale_gradient`, `scale_forward`, `scale_both`, `reverse_gradient`: a factor each way.

The value is multiplied by one factor and the gradient by another; most have one of them.
"""

from typing import Any

import torch
from torch import Tensor

from pullback.gradients._check import Factor, check_factor, check_tensor, multiply, widen
from pullback.gradients._module import ShapeFunction, module_of
from pullback.tensor import Function

__all__ = [
    "ReverseGradient",
    "ScaleBoth",
    "ScaleForward",
    "ScaleGradient",
    "reverse_gradient",
    "scale_both",
    "scale_forward",
    "scale_gradient",
]


class ScaleGradientFunction(ShapeFunction):
    """The Function behind `scale_gradient` and `reverse_gradient`: ``x -> x``, ``g -> g f``."""

    _direct = True
    shape = staticmethod(multiply)


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


ScaleGradient = module_of(scale_gradient, "2.0")


def reverse_gradient(x: Tensor, strength: Factor = 1.0, *, allow_nan: bool = False) -> Tensor:
    r"""Return ``x`` unchanged and reverse the gradient that flows back to it.

    .. math:: y = x, \qquad \bar x = -\lambda \, \bar y

    The gradient reversal layer of Ganin and Lempitsky, "Unsupervised Domain Adaptation by
    Backpropagation" (ICML 2015, https://arxiv.org/abs/1409.7495). The result shares its memory
    with ``x``.

    Arguments:
        x: shape (...), any floating or complex dtype.
        strength: the factor of the reversal, a number or a tensor that broadcasts to ``x``; the
            rules of `scale_gradient` for its factor hold.
        allow_nan: take a NaN or infinite strength, which is refused otherwise.

    Returns:
        A view of ``x``.

    Raises:
        ArgumentTypeError: ``x`` or the strength has no usable type.
        ArgumentError: the strength is NaN or infinite, or does not broadcast.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import reverse_gradient
        >>> x = torch.ones(2, requires_grad=True)
        >>> reverse_gradient(x, 0.5).sum().backward()
        >>> x.grad
        tensor([-0.5000, -0.5000])
    """
    check_tensor(x, "reverse_gradient")
    strength = check_factor(strength, x, "reverse_gradient", "strength", allow_nan)
    return ScaleGradientFunction.apply(x, -strength)


ReverseGradient = module_of(reverse_gradient)


# Not `scale_forward` of `scale_gradient`: the derivative of the forward factor is ``sum(g x*)``,
# and what that sends on to ``x`` at second order would be multiplied by the backward factor.
class ScaleBothFunction(Function):
    """The Function behind `scale_both` and `scale_forward`: ``x -> a x``, ``g -> g b``."""

    gradient = "surrogate"
    _direct = True

    @staticmethod
    def forward(x: Tensor, forward: Factor, backward: Factor | None) -> Tensor:
        """Return ``x`` times the forward factor, in the dtype of ``x``."""
        return multiply(x, forward)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the backward factor, and what the derivative of the forward factor needs."""
        x, forward, backward = inputs
        learned = ctx.needs_input_grad[1]
        ctx.save_for_backward(
            x if learned else None, backward if isinstance(backward, Tensor) else None
        )
        ctx.backward_factor = None if isinstance(backward, Tensor) else backward
        ctx.forward_factor = (forward.shape, forward.dtype) if learned else None

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the scaled cotangent, the forward factor's derivative, and a zero."""
        x, backward = ctx.saved_tensors
        factor = backward if backward is not None else ctx.backward_factor
        to_x = to_forward = to_backward = None
        if ctx.needs_input_grad[0]:
            to_x = cotangent if factor is None else multiply(cotangent, factor)
        if ctx.needs_input_grad[1]:
            to_forward = _derivative_of_factor(cotangent, x, *ctx.forward_factor)
        if ctx.needs_input_grad[2]:
            to_backward = torch.zeros_like(backward)
        return to_x, to_forward, to_backward


def _derivative_of_factor(
    cotangent: Tensor, x: Tensor, shape: torch.Size, dtype: torch.dtype
) -> Tensor:
    """Return the sum of ``cotangent * conj(x)`` over what the factor was broadcast to."""
    wide = torch.promote_types(widen(x).dtype, dtype)
    product = cotangent.to(wide) * x.to(wide).conj()
    if product.is_complex() and not dtype.is_complex:
        product = product.real
    return product.sum_to_size(shape).to(dtype)


def scale_both(x: Tensor, forward: Factor, backward: Factor, *, allow_nan: bool = False) -> Tensor:
    r"""Return ``x`` times one factor and multiply its gradient by another.

    .. math:: y = a \, x, \qquad \bar x = b \, \bar y, \qquad \bar a = \sum \bar y \, x^*,
              \qquad \bar b = 0

    Arguments:
        x: shape (...), any floating or complex dtype.
        forward: the value's factor, a number or a tensor that broadcasts to ``x``. One that
            requires a gradient gets its exact derivative.
        backward: the gradient's factor, likewise. One that requires a gradient gets exactly
            zero at first order, as the value does not depend on it. A complex one multiplies as
            given, not conjugated.
        allow_nan: take NaN and infinite factors, which are refused otherwise.

    Returns:
        Shape (...), the dtype of ``x``.

    Raises:
        ArgumentTypeError: ``x`` or a factor has no usable type.
        ArgumentError: a factor is NaN or infinite, or does not broadcast.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import scale_both
        >>> x = torch.ones(2, requires_grad=True)
        >>> y = scale_both(x, forward=3.0, backward=0.5)
        >>> y.sum().backward()
        >>> y.detach(), x.grad
        (tensor([3., 3.]), tensor([0.5000, 0.5000]))
    """
    check_tensor(x, "scale_both")
    forward = check_factor(forward, x, "scale_both", "forward", allow_nan)
    backward = check_factor(backward, x, "scale_both", "backward", allow_nan)
    return ScaleBothFunction.apply(x, forward, backward)


ScaleBoth = module_of(
    scale_both,
    "2.0, 0.5",
    result="tensor([2.])",
    attributes={"forward": "forward_factor", "backward": "backward_factor"},
)


def scale_forward(x: Tensor, factor: Factor, *, allow_nan: bool = False) -> Tensor:
    r"""Return ``x`` times a factor and let the gradient flow back as it is.

    .. math:: y = f \, x, \qquad \bar x = \bar y, \qquad \bar f = \sum \bar y \, x^*

    Arguments:
        x: shape (...), any floating or complex dtype.
        factor: a number, or a tensor that broadcasts to ``x``, used in float32 or wider and real
            for a real ``x``. The value does depend on it: a factor that requires a gradient gets
            its exact derivative, summed over what it was broadcast to.
        allow_nan: take NaN and infinite factors, which are refused otherwise.

    Returns:
        Shape (...), the dtype of ``x``.

    Raises:
        ArgumentTypeError: ``x`` or the factor has no usable type.
        ArgumentError: the factor is NaN or infinite, or does not broadcast.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import scale_forward
        >>> x = torch.ones(2, requires_grad=True)
        >>> y = scale_forward(x, 3.0)
        >>> y.sum().backward()
        >>> y.detach(), x.grad
        (tensor([3., 3.]), tensor([1., 1.]))
    """
    check_tensor(x, "scale_forward")
    factor = check_factor(factor, x, "scale_forward", allow_nan=allow_nan)
    return ScaleBothFunction.apply(x, factor, None)


ScaleForward = module_of(scale_forward, "2.0", result="tensor([2.])")
