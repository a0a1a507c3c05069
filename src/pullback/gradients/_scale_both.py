"""`scale_both`: the value times one factor, the gradient times another."""

from typing import Any

import torch
from torch import Tensor

from pullback.gradients._check import check_tensor
from pullback.gradients._factor import Factor, check_factor, multiply, widen
from pullback.gradients._module import module_of
from pullback.tensor import Function

__all__ = ["ScaleBoth", "ScaleBothFunction", "scale_both"]


class ScaleBothFunction(Function):
    """The Function behind `scale_both` and `scale_forward`: ``x -> a x``, ``g -> g b``."""

    gradient = "surrogate"

    @staticmethod
    def forward(x: Tensor, forward: Factor, backward: Factor | None) -> Tensor:
        """Return ``x`` times the forward factor, in the dtype of ``x``."""
        return multiply(x, forward)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the backward factor, and what a differentiable forward factor needs."""
        x, forward, backward = inputs
        learned = isinstance(forward, Tensor)
        ctx.save_for_backward(
            x if learned else None,
            forward if learned else None,
            backward if isinstance(backward, Tensor) else None,
        )
        ctx.backward_factor = None if isinstance(backward, Tensor) else backward

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the scaled cotangent, the forward factor's derivative, and a zero."""
        x, forward, backward = ctx.saved_tensors
        factor = backward if backward is not None else ctx.backward_factor
        to_x = to_forward = to_backward = None
        if ctx.needs_input_grad[0]:
            to_x = cotangent if factor is None else multiply(cotangent, factor)
        if ctx.needs_input_grad[1]:
            to_forward = _derivative_of_factor(cotangent, x, forward)
        if ctx.needs_input_grad[2]:
            to_backward = torch.zeros_like(backward)
        return to_x, to_forward, to_backward


def _derivative_of_factor(cotangent: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    """Return the sum of ``cotangent * conj(x)`` over what the factor was broadcast to."""
    wide = torch.promote_types(widen(x).dtype, factor.dtype)
    product = cotangent.to(wide) * x.to(wide).conj()
    if product.is_complex() and not factor.is_complex():
        product = product.real
    return product.sum_to_size(factor.shape).to(factor.dtype)


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
    forward = check_factor(forward, x, "scale_both", name="forward", allow_nan=allow_nan)
    backward = check_factor(backward, x, "scale_both", name="backward", allow_nan=allow_nan)
    return ScaleBothFunction.apply(x, forward, backward)


def _check_factors(forward: Factor, backward: Factor, allow_nan: bool, function: str) -> None:
    check_factor(forward, None, function, name="forward", allow_nan=allow_nan)
    check_factor(backward, None, function, name="backward", allow_nan=allow_nan)


ScaleBoth = module_of(
    scale_both,
    ">>> ScaleBoth(2.0, 0.5)(torch.ones(1))\ntensor([2.])",
    _check_factors,
    attributes={"forward": "forward_factor", "backward": "backward_factor"},
)
