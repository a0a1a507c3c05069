"""`straight_through_sign`: the sign, letting the gradient through, in a window if asked."""

import torch
from torch import Tensor

from pullback.gradients._check import check_real, check_tensor
from pullback.gradients._factor import widen
from pullback.gradients._module import module_of
from pullback.gradients._norm import check_positive
from pullback.gradients._straight_through import StraightThroughFunction
from pullback.gradients._where_gradient import WhereGradientFunction

__all__ = ["StraightThroughSign", "straight_through_sign"]


def straight_through_sign(x: Tensor, *, window: float | None = None) -> Tensor:
    r"""Return the sign of ``x``, with the gradient of ``x``, inside of a window if one is given.

    .. math:: y = \operatorname{sign}(x), \qquad \bar x = \bar y \, [\,\lvert x \rvert \le w\,]

    With ``window=1`` the gradient is that of the hard tanh, as in Courbariaux et al.,
    "Binarized Neural Networks" (2016, https://arxiv.org/abs/1602.02830).

    Arguments:
        x: shape (...), any floating dtype. The sign of 0 is 0, that of NaN is NaN.
        window: the largest magnitude that lets its gradient through, > 0; ``None`` lets all.

    Returns:
        Shape (...), the dtype of ``x``.

    Raises:
        ArgumentTypeError: ``x`` is no floating tensor, or the window no number.
        ArgumentError: the window is not positive.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import straight_through_sign
        >>> x = torch.tensor([0.4, -1.5], requires_grad=True)
        >>> y = straight_through_sign(x, window=1.0)
        >>> y.sum().backward()
        >>> y.detach(), x.grad
        (tensor([ 1., -1.]), tensor([1., 0.]))
    """
    check_tensor(x, "straight_through_sign")
    check_real(x, "straight_through_sign", "complex numbers have no sign")
    value = widen(x.detach())
    hard = torch.where(torch.isnan(value), value, torch.sign(value)).to(x.dtype)
    if window is not None:
        bound = check_positive(window, "straight_through_sign", "window")
        x = WhereGradientFunction.apply(x, value.abs() <= bound)
    return StraightThroughFunction.apply(hard, x)


StraightThroughSign = module_of(
    straight_through_sign,
    ">>> StraightThroughSign()(torch.tensor([0.6]))\ntensor([1.])",
    lambda window, function: window is None or check_positive(window, function, "window"),
)
