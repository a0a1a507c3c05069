"""`normalise_gradient`: the value as it is, the gradient brought to a given norm."""

from typing import Any

from torch import Tensor

from pullback.gradients._check import check_tensor
from pullback.gradients._module import module_of
from pullback.gradients._norm import Dimensions, check_dimensions, check_positive, direction_of
from pullback.tensor import Function

__all__ = ["NormaliseGradient", "NormaliseGradientFunction", "normalise_gradient"]


class NormaliseGradientFunction(Function):
    """The Function behind `normalise_gradient`: not linear in the cotangent, declared so."""

    gradient = "nonlinear"

    @staticmethod
    def forward(x: Tensor, norm: float, dim: Dimensions) -> Tensor:
        """Return a view of ``x``: no copy."""
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the norm."""
        _, ctx.norm, ctx.dim = inputs

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        """Return the cotangent with the given norm; a zero one stays zero."""
        if cotangent.numel() == 0:
            return cotangent, None, None
        direction, _ = direction_of(cotangent, ctx.dim)
        return (direction * ctx.norm).to(cotangent.dtype), None, None


def normalise_gradient(x: Tensor, norm: float = 1.0, *, dim: Dimensions = None) -> Tensor:
    r"""Return ``x`` unchanged and bring the gradient that flows back to it to a given norm.

    .. math:: y = x, \qquad \bar x = n \, \bar y / \lVert \bar y \rVert_2

    A zero gradient stays zero. The backward is not linear in the cotangent and declares it:
    forward mode is refused by name. A non-finite gradient becomes NaN. The result shares its
    memory with ``x``.

    Arguments:
        x: shape (...), any floating or complex dtype.
        norm: the Euclidean norm of the result, > 0, measured in float32 or wider. Under vmap
            each sample has its own.
        dim: the dimensions over which the norm is taken, each slice on its own; ``None`` takes
            the whole tensor.

    Returns:
        A view of ``x``.

    Raises:
        ArgumentTypeError: ``x`` or the norm has no usable type.
        ArgumentError: the norm is not positive, or an unknown ``dim``.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import normalise_gradient
        >>> x = torch.zeros(2, requires_grad=True)
        >>> (normalise_gradient(x, 10.0) * torch.tensor([3.0, 4.0])).sum().backward()
        >>> x.grad
        tensor([6., 8.])
    """
    check_tensor(x, "normalise_gradient")
    norm = check_positive(norm, "normalise_gradient", "norm")
    axes = check_dimensions(dim, x, "normalise_gradient")
    return NormaliseGradientFunction.apply(x, norm, axes)


NormaliseGradient = module_of(
    normalise_gradient,
    ">>> NormaliseGradient()(torch.ones(1))\ntensor([1.])",
    lambda norm, dim, function: check_positive(norm, function, "norm"),
)
