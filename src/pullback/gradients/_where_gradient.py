"""`where_gradient`: the value as it is, the gradient only where a mask is true."""

from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentTypeError
from pullback.gradients._check import check_broadcast, check_device, check_tensor
from pullback.gradients._module import module_of
from pullback.tensor import Function

__all__ = ["WhereGradient", "WhereGradientFunction", "where_gradient"]


class WhereGradientFunction(Function):
    """The Function behind `where_gradient`: ``g -> g`` where the mask is true, else 0."""

    gradient = "surrogate"

    @staticmethod
    def forward(x: Tensor, mask: Tensor) -> Tensor:
        """Return a view of ``x``: no copy."""
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the mask."""
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        """Return the masked cotangent: a NaN behind the mask is 0, not NaN."""
        (mask,) = ctx.saved_tensors
        return torch.where(mask, cotangent, torch.zeros_like(cotangent)), None


def where_gradient(x: Tensor, mask: Tensor) -> Tensor:
    r"""Return ``x`` unchanged and let the gradient flow back only where a mask is true.

    .. math:: y = x, \qquad \bar x = \begin{cases}\bar y & m\\ 0 & \text{else}\end{cases}

    NaN and infinite gradients behind the mask become 0. The result shares its memory with ``x``.

    Arguments:
        x: shape (...), any floating or complex dtype.
        mask: booleans that broadcast to ``x``, on its device.

    Returns:
        A view of ``x``.

    Raises:
        ArgumentTypeError: ``x`` has no usable type, or the mask is not boolean.
        ArgumentError: the mask does not broadcast, or is on another device.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import where_gradient
        >>> x = torch.ones(2, requires_grad=True)
        >>> where_gradient(x, torch.tensor([True, False])).sum().backward()
        >>> x.grad
        tensor([1., 0.])
    """
    check_tensor(x, "where_gradient")
    _check_mask(mask, "where_gradient")
    check_broadcast(mask.shape, x.shape, "where_gradient", "mask")
    check_device(mask, x, "where_gradient", "mask")
    return WhereGradientFunction.apply(x, mask)


def _check_mask(mask: Tensor, function: str) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.layout != torch.strided:
        given = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ArgumentTypeError(
            f"{function}: the mask is not a tensor of booleans.",
            given=f"mask: {given}",
            expected="a strided tensor of dtype torch.bool",
            mend="Compare: mask = weights > 0.",
        )


WhereGradient = module_of(
    where_gradient,
    ">>> WhereGradient(torch.tensor([True]))(torch.ones(1))\ntensor([1.])",
    _check_mask,
)
