"""`scale_forward`: the value times a factor, the gradient as it is."""

import functools

from torch import Tensor

from pullback.gradients._check import check_tensor
from pullback.gradients._factor import Factor, check_factor
from pullback.gradients._module import module_of
from pullback.gradients._scale_both import ScaleBothFunction

__all__ = ["ScaleForward", "ScaleForwardFunction", "scale_forward"]


class ScaleForwardFunction(ScaleBothFunction):
    """`ScaleBothFunction` under the name of its use, with the backward factor ``None``."""


def scale_forward(x: Tensor, factor: Factor, *, allow_nan: bool = False) -> Tensor:
    r"""Return ``x`` times a factor and let the gradient flow back as it is.

    .. math:: y = f \, x, \qquad \bar x = \bar y, \qquad \bar f = \sum \bar y \, x^*

    Arguments:
        x: shape (...), any floating or complex dtype.
        factor: a number, or a tensor that broadcasts to ``x``, used in float32 or wider and real
            for a real ``x``. The value does depend on it: a factor that requires a gradient gets
            its exact derivative, summed over what it was broadcast to.
        allow_nan: take NaN and infinite factors, which are refused otherwise.

    Returns:
        Shape (...), the dtype of ``x``.

    Raises:
        ArgumentTypeError: ``x`` or the factor has no usable type.
        ArgumentError: the factor is NaN or infinite, or does not broadcast.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import scale_forward
        >>> x = torch.ones(2, requires_grad=True)
        >>> y = scale_forward(x, 3.0)
        >>> y.sum().backward()
        >>> y.detach(), x.grad
        (tensor([3., 3.]), tensor([1., 1.]))
    """
    check_tensor(x, "scale_forward")
    factor = check_factor(factor, x, "scale_forward", allow_nan=allow_nan)
    return ScaleForwardFunction.apply(x, factor, None)


ScaleForward = module_of(
    scale_forward,
    ">>> ScaleForward(2.0)(torch.ones(1))\ntensor([2.])",
    functools.partial(check_factor, x=None),
)
