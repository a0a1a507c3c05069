"""`stop_gradient`: the value as it is, no gradient."""

from typing import Any

from torch import Tensor

from pullback.gradients._check import check_tensor
from pullback.gradients._module import module_of
from pullback.tensor import Function

__all__ = ["StopGradient", "StopGradientFunction", "stop_gradient"]


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
