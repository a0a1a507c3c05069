"""`straight_through_one_hot`: the largest entry as a one-hot vector, with the gradient."""

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.gradients._check import check_real, check_tensor
from pullback.gradients._factor import widen
from pullback.gradients._module import module_of
from pullback.gradients._straight_through import StraightThroughFunction

__all__ = ["StraightThroughOneHot", "straight_through_one_hot"]


def straight_through_one_hot(x: Tensor, *, dim: int = -1) -> Tensor:
    r"""Return the one-hot vector of the largest entry along ``dim``, with the gradient of ``x``.

    .. math:: y_i = [\,i = \operatorname{argmax}_j x_j\,], \qquad \bar x = \bar y

    For the straight-through Gumbel-softmax of Jang, Gu and Poole (2016,
    https://arxiv.org/abs/1611.01144), pass the softmax of the perturbed logits.

    Arguments:
        x: shape (..., n, ...), any floating dtype. Of equal entries one is chosen, as by
            torch.argmax; a slice with a NaN becomes NaN.
        dim: the dimension of size n >= 1 to choose along.

    Returns:
        The shape and dtype of ``x``: one 1 along ``dim``, else 0.

    Raises:
        ArgumentTypeError: ``x`` is no floating tensor, or ``dim`` no integer.
        ArgumentError: ``x`` has no such dimension, or nothing to choose from along it.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import straight_through_one_hot
        >>> x = torch.tensor([0.2, 0.7, 0.1], requires_grad=True)
        >>> straight_through_one_hot(x).detach()
        tensor([0., 1., 0.])
    """
    check_tensor(x, "straight_through_one_hot")
    check_real(x, "straight_through_one_hot", "complex numbers have no order")
    _check_dim(dim, x)
    value = widen(x.detach())
    if x.numel() == 0:
        hard = value
    else:
        best = value.argmax(dim, keepdim=True)
        places = torch.arange(x.shape[dim], device=x.device)
        places = places.reshape([-1 if axis == dim % x.ndim else 1 for axis in range(x.ndim)])
        hard = (places == best).to(value.dtype)
        hard = torch.where(torch.isnan(value).any(dim, keepdim=True), torch.nan, hard)
    return StraightThroughFunction.apply(hard.to(x.dtype), x)


def _check_dim(dim: int, x: Tensor) -> None:
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise ArgumentTypeError(
            "straight_through_one_hot: dim is not an integer.", given=f"dim={dim!r}"
        )
    if x.ndim == 0 or not -x.ndim <= dim < x.ndim:
        raise ArgumentError(
            "straight_through_one_hot: x does not have this dimension.",
            given=f"dim={dim} for x of shape {tuple(x.shape)}",
            expected="at least one dimension, and -x.ndim <= dim < x.ndim",
        )
    if x.shape[dim] == 0:
        raise ArgumentError(
            "straight_through_one_hot: there is nothing to choose from.",
            given=f"x of shape {tuple(x.shape)} along dim={dim}",
            expected="at least one entry along dim",
        )


StraightThroughOneHot = module_of(
    straight_through_one_hot,
    ">>> StraightThroughOneHot()(torch.tensor([0.2, 0.8]))\ntensor([0., 1.])",
)
