"""`straight_through_threshold`: a step at a threshold that lets the gradient through."""

import torch
from torch import Tensor

from pullback.gradients._check import check_real, check_tensor
from pullback.gradients._factor import Factor, check_factor, widen
from pullback.gradients._module import module_of
from pullback.gradients._straight_through import StraightThroughFunction

__all__ = ["StraightThroughThreshold", "straight_through_threshold"]


def straight_through_threshold(x: Tensor, threshold: Factor = 0.0) -> Tensor:
    r"""Return 1 where ``x`` is above a threshold and 0 elsewhere, with the gradient of ``x``.

    .. math:: y = [\,x > t\,], \qquad \bar x = \bar y

    Arguments:
        x: shape (...), any floating dtype. NaN stays NaN.
        threshold: a number or a tensor that broadcasts to ``x``; it gets no gradient. The
            comparison is made in float32 or wider.

    Returns:
        Shape (...), the dtype of ``x``: 0 and 1.

    Raises:
        ArgumentTypeError: an argument has no usable type.
        ArgumentError: the threshold is NaN or infinite, or does not broadcast.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import straight_through_threshold
        >>> x = torch.tensor([0.4, 0.6], requires_grad=True)
        >>> y = straight_through_threshold(x, 0.5)
        >>> y.sum().backward()
        >>> y.detach(), x.grad
        (tensor([0., 1.]), tensor([1., 1.]))
    """
    check_tensor(x, "straight_through_threshold")
    check_real(x, "straight_through_threshold", "complex numbers have no order")
    level = check_factor(threshold, x, "straight_through_threshold", name="threshold")
    if isinstance(level, Tensor):
        level = level.detach()
    value = widen(x.detach())
    hard = torch.where(torch.isnan(value), value, (value > level).to(value.dtype))
    return StraightThroughFunction.apply(hard.to(x.dtype), x)


StraightThroughThreshold = module_of(
    straight_through_threshold,
    ">>> StraightThroughThreshold(0.5)(torch.tensor([0.6]))\ntensor([1.])",
    lambda threshold, function: check_factor(threshold, None, function, name="threshold"),
)
