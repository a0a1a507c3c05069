"""`reverse_gradient`: the value as it is, the gradient turned round."""

from torch import Tensor

from pullback.gradients._check import check_tensor
from pullback.gradients._factor import Factor, check_factor
from pullback.gradients._module import module_of
from pullback.gradients._scale_gradient import ScaleGradientFunction

__all__ = ["ReverseGradient", "ReverseGradientFunction", "reverse_gradient"]


class ReverseGradientFunction(ScaleGradientFunction):
    """`ScaleGradientFunction` under the name of its use, with the factor ``-strength``."""

    _direct = True


def reverse_gradient(x: Tensor, strength: Factor = 1.0, *, allow_nan: bool = False) -> Tensor:
    r"""Return ``x`` unchanged and reverse the gradient that flows back to it.

    .. math:: y = x, \qquad \bar x = -\lambda \, \bar y

    The gradient reversal layer of Ganin and Lempitsky, "Unsupervised Domain Adaptation by
    Backpropagation" (ICML 2015, https://arxiv.org/abs/1409.7495). The result shares its memory
    with ``x``.

    Arguments:
        x: shape (...), any floating or complex dtype.
        strength: the factor of the reversal, a number or a tensor that broadcasts to ``x``; the
            rules of `scale_gradient` for its factor hold.
        allow_nan: take a NaN or infinite strength, which is refused otherwise.

    Returns:
        A view of ``x``.

    Raises:
        ArgumentTypeError: ``x`` or the strength has no usable type.
        ArgumentError: the strength is NaN or infinite, or does not broadcast.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import reverse_gradient
        >>> x = torch.ones(2, requires_grad=True)
        >>> reverse_gradient(x, 0.5).sum().backward()
        >>> x.grad
        tensor([-0.5000, -0.5000])
    """
    check_tensor(x, "reverse_gradient")
    strength = check_factor(strength, x, "reverse_gradient", name="strength", allow_nan=allow_nan)
    return ReverseGradientFunction.apply(x, -strength)


def _check_strength(strength: Factor, allow_nan: bool, function: str) -> None:
    check_factor(strength, None, function, name="strength", allow_nan=allow_nan)


ReverseGradient = module_of(
    reverse_gradient,
    ">>> ReverseGradient()(torch.ones(1))\ntensor([1.])",
    _check_strength,
)
