"""`stop_gradient`, `where_gradient`, `replace_gradient`: where the gradient goes."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from pullback.errors import ArgumentTypeError
from pullback.gradients._check import check_broadcast, check_device, check_tensor
from pullback.gradients._module import module_of
from pullback.tensor import Function

__all__ = [
    "ReplaceGradient",
    "ReplaceGradientFunction",
    "StopGradient",
    "StopGradientFunction",
    "WhereGradient",
    "WhereGradientFunction",
    "replace_gradient",
    "stop_gradient",
    "where_gradient",
]


class StopGradientFunction(Function):
    """The Function behind `stop_gradient`: an output that carries no history."""

    gradient = "surrogate"

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Return ``x`` without its history: no copy."""
        return x.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Declare that the output has no gradient."""
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> None:
        """Return nothing: no gradient flows."""
        return


def stop_gradient(x: Tensor) -> Tensor:
    r"""Return ``x`` unchanged and let no gradient flow back to it.

    .. math:: y = x, \qquad \bar x = 0

    The result carries no history and shares its memory with ``x``, like ``x.detach()``:
    changing it in place changes ``x``, and torch notices where backward needs the old value.

    Arguments:
        x: shape (...), any floating or complex dtype.

    Returns:
        A view of ``x`` that requires no gradient.

    Raises:
        ArgumentTypeError: ``x`` is no tensor or cannot carry a gradient.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import stop_gradient
        >>> x = torch.ones(2, requires_grad=True)
        >>> stop_gradient(x).requires_grad
        False
    """
    check_tensor(x, "stop_gradient")
    return StopGradientFunction.apply(x)


StopGradient = module_of(
    stop_gradient,
    ">>> StopGradient()(torch.ones(1, requires_grad=True)).requires_grad\nFalse",
)


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
    cast("Callable[[Tensor], Tensor]", replace_gradient),
    ">>> ReplaceGradient()(torch.ones(1), torch.zeros(1))\ntensor([1.])",
    inputs=2,
)
