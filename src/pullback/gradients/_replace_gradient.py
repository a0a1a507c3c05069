"""`replace_gradient`: the value of one tensor, the gradient of another."""

from typing import Any

import torch
from torch import Tensor

from pullback.gradients._check import check_broadcast, check_device, check_tensor
from pullback.gradients._module import module_of
from pullback.tensor import Function

__all__ = ["ReplaceGradient", "ReplaceGradientFunction", "replace_gradient"]


class ReplaceGradientFunction(Function):
    """The Function behind `replace_gradient`: ``(x, like) -> x``, ``g -> (0, g)``."""

    gradient = "surrogate"

    @staticmethod
    def forward(x: Tensor, like: Tensor) -> Tensor:
        """Return a view of ``x``: no copy."""
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep what the gradient of ``like`` looks like."""
        like = inputs[1]
        ctx.shape, ctx.dtype = like.shape, like.dtype

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return zero for the value and the cotangent, summed to shape, for the other."""
        to_x = torch.zeros_like(cotangent) if ctx.needs_input_grad[0] else None
        to_like = None
        if ctx.needs_input_grad[1]:
            to_like = cotangent.sum_to_size(ctx.shape)
            if not ctx.dtype.is_complex and to_like.is_complex():
                to_like = to_like.real
            to_like = to_like.to(ctx.dtype)
        return to_x, to_like


def replace_gradient(x: Tensor, like: Tensor) -> Tensor:
    r"""Return the value of ``x`` with the gradient of ``like``.

    .. math:: y = x, \qquad \bar x = 0, \qquad \overline{\text{like}} = \bar y

    The value is exact, where the sum ``like + (x - like).detach()`` rounds. The result shares
    its memory with ``x``. Where ``like`` is broadcast, its gradient is summed; where its dtype
    differs, it is converted, a real one getting the real part.

    Arguments:
        x: shape (...), any floating or complex dtype: the value. It gets no gradient.
        like: the tensor that the gradient flows to, of a shape that broadcasts to ``x``.

    Returns:
        A view of ``x``.

    Raises:
        ArgumentTypeError: an argument has no usable type.
        ArgumentError: ``like`` does not broadcast, or is on another device.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import replace_gradient
        >>> x = torch.tensor([0.3, -2.0], requires_grad=True)
        >>> y = replace_gradient(torch.sign(x), like=torch.tanh(x))
        >>> y.sum().backward()
        >>> y.detach(), x.grad
        (tensor([ 1., -1.]), tensor([0.9151, 0.0707]))
    """
    check_tensor(x, "replace_gradient")
    check_tensor(like, "replace_gradient", "like")
    check_broadcast(like.shape, x.shape, "replace_gradient", "like")
    check_device(like, x, "replace_gradient", "like")
    # Detached, so that nothing is computed backwards only to be multiplied by zero.
    return ReplaceGradientFunction.apply(x.detach(), like)


ReplaceGradient = module_of(
    replace_gradient,
    ">>> ReplaceGradient()(torch.ones(1), torch.zeros(1))\ntensor([1.])",
    inputs=2,
)
