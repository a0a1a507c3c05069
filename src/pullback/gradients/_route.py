"""`stop_gradient`, `where_gradient`, `replace_gradient`: where the gradient goes."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from pullback.gradients._arguments import check_mask
from pullback.gradients._check import check_fits, check_tensor
from pullback.gradients._module import ShapeFunction, module_of
from pullback.tensor import Function

__all__ = [
    "ReplaceGradient",
    "StopGradient",
    "WhereGradient",
    "replace_gradient",
    "stop_gradient",
    "where_gradient",
]


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
    return x.detach()  # which every transform knows: no Function is needed


StopGradient = module_of(stop_gradient, given="torch.ones(1, requires_grad=True)")


class WhereGradientFunction(ShapeFunction):
    """The Function behind `where_gradient`: ``g -> g`` where the mask is true, else 0."""

    _direct = True

    @staticmethod
    def shape(cotangent: Tensor, mask: Tensor) -> Tensor:
        """Return the masked cotangent: a NaN behind the mask is 0, not NaN."""
        return torch.where(mask, cotangent, torch.zeros_like(cotangent))


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
    return WhereGradientFunction.apply(x, check_mask(mask, x, "where_gradient"))


WhereGradient = module_of(where_gradient, "torch.tensor([True])")


class ReplaceGradientFunction(Function):
    """The Function behind `replace_gradient`: ``(x, like) -> x``, ``g -> (0, g)``."""

    gradient = "surrogate"
    _direct = True

    @staticmethod
    def forward(x: Tensor, like: Tensor) -> Tensor:
        """Return a view of ``x``: no copy."""
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[None, Tensor]:
        """Return the cotangent, for ``like``."""
        return None, cotangent


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
    check_fits(like, x, "replace_gradient", "like")
    if like.is_complex() and not x.is_complex():
        like = like.real
    # What broadcasts and converts ``like`` also brings its gradient back to its form.
    # Detached, so that nothing is computed backwards only to be multiplied by zero.
    return ReplaceGradientFunction.apply(x.detach(), like.to(x.dtype).expand(x.shape))


ReplaceGradient = module_of(
    cast("Callable[[Tensor], Tensor]", replace_gradient),
    given="torch.ones(1), torch.zeros(1)",
    inputs=2,
)
