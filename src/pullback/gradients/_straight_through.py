"""`straight_through`: the value of a hard decision, the gradient of a soft one."""

from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.gradients._check import check_device, check_tensor
from pullback.gradients._module import module_of
from pullback.tensor import Function

__all__ = ["StraightThrough", "StraightThroughFunction", "straight_through"]


class StraightThroughFunction(Function):
    """The Function behind every straight-through estimator: ``(h, s) -> h``, ``g -> (0, g)``."""

    gradient = "surrogate"

    @staticmethod
    def forward(hard: Tensor, soft: Tensor) -> Tensor:
        """Return a view of the hard value: no copy."""
        return hard.view_as(hard)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing: the cotangent passes as it is."""

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return zero for the hard value and the cotangent for the soft one."""
        to_hard = torch.zeros_like(cotangent) if ctx.needs_input_grad[0] else None
        return to_hard, cotangent


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    r"""Return the value of ``hard`` with the gradient of ``soft``.

    .. math:: y = h, \qquad \bar h = 0, \qquad \bar s = \bar y

    The value is exact, where the sum ``soft + (hard - soft).detach()`` rounds. The result shares
    its memory with ``hard`` if that has the dtype of ``soft``.

    Bengio, Leonard and Courville, "Estimating or Propagating Gradients Through Stochastic
    Neurons for Conditional Computation" (2013, https://arxiv.org/abs/1308.3432).

    Arguments:
        hard: shape (...), any strided tensor: the value. Integers and booleans are converted to
            the dtype of ``soft``. It gets no gradient.
        soft: shape (...), floating or complex: where the gradient flows to.

    Returns:
        Shape (...), the dtype of ``soft``.

    Raises:
        ArgumentTypeError: an argument has no usable type, or ``hard`` alone is complex.
        ArgumentError: the shapes or devices differ.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import straight_through
        >>> x = torch.tensor([0.3, -2.0], requires_grad=True)
        >>> y = straight_through(x > 0, x)
        >>> y.sum().backward()
        >>> y.detach(), x.grad
        (tensor([1., 0.]), tensor([1., 1.]))
    """
    check_tensor(soft, "straight_through", "soft")
    _check_hard(hard, soft)
    # Detached, so that nothing is computed backwards only to be multiplied by zero.
    return StraightThroughFunction.apply(hard.detach().to(soft.dtype), soft)


def _check_hard(hard: Tensor, soft: Tensor) -> None:
    if not isinstance(hard, Tensor):
        raise ArgumentTypeError(
            "straight_through: hard is not a tensor.",
            given=f"hard of type {type(hard).__name__}",
            expected="a tensor of the shape of soft",
        )
    if hard.is_nested or hard.layout is not torch.strided:
        raise UnsupportedError(
            "straight_through does not take sparse or nested tensors.",
            given=f"hard with layout {hard.layout}",
            mend="Pass hard.to_dense().",
        )
    if hard.is_complex() and not soft.is_complex():
        raise ArgumentTypeError(
            "straight_through: hard is complex and soft is real.",
            given=f"hard of dtype {hard.dtype}, soft of dtype {soft.dtype}",
        )
    if hard.shape != soft.shape:
        raise ArgumentError(
            "straight_through: hard and soft have different shapes.",
            given=f"hard {tuple(hard.shape)}, soft {tuple(soft.shape)}",
            expected="one shape",
            mend="For one that broadcasts, use replace_gradient(hard, like=soft).",
        )
    check_device(hard, soft, "straight_through", "hard", "soft")


StraightThrough = module_of(
    straight_through,
    ">>> StraightThrough()(torch.ones(1), torch.zeros(1))\ntensor([1.])",
    inputs=2,
)
