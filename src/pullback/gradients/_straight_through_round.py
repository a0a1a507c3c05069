"""`straight_through_round`: rounding that lets the gradient through."""

import torch
from torch import Tensor

from pullback.gradients._check import check_real, check_tensor
from pullback.gradients._factor import widen
from pullback.gradients._module import module_of
from pullback.gradients._straight_through import StraightThroughFunction

__all__ = ["StraightThroughRound", "straight_through_round"]


def straight_through_round(x: Tensor) -> Tensor:
    r"""Return ``x`` rounded to whole numbers, ties to even, with the gradient of ``x``.

    .. math:: y = \operatorname{round}(x), \qquad \bar x = \bar y

    Arguments:
        x: shape (...), any floating dtype. NaN and infinities stay as they are.

    Returns:
        Shape (...), the dtype of ``x``.

    Raises:
        ArgumentTypeError: ``x`` is no floating tensor.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import straight_through_round
        >>> x = torch.tensor([0.4, 1.5], requires_grad=True)
        >>> y = straight_through_round(x)
        >>> y.sum().backward()
        >>> y.detach(), x.grad
        (tensor([0., 2.]), tensor([1., 1.]))
    """
    check_tensor(x, "straight_through_round")
    check_real(x, "straight_through_round", "torch does not round complex numbers")
    return StraightThroughFunction.apply(torch.round(widen(x.detach())).to(x.dtype), x)


StraightThroughRound = module_of(
    straight_through_round,
    ">>> StraightThroughRound()(torch.tensor([0.6]))\ntensor([1.])",
)
