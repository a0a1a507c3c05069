"""`straight_through` and its ready decisions: a hard value with the gradient of a soft one."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.gradients._arguments import check_dimensions, check_positive
from pullback.gradients._check import (
    Factor,
    check_device,
    check_factor,
    check_strided,
    check_tensor,
    widen,
)
from pullback.gradients._module import module_of
from pullback.gradients._route import ReplaceGradientFunction, WhereGradientFunction

__all__ = [
    "StraightThrough",
    "StraightThroughOneHot",
    "StraightThroughRound",
    "StraightThroughSign",
    "StraightThroughThreshold",
    "straight_through",
    "straight_through_one_hot",
    "straight_through_round",
    "straight_through_sign",
    "straight_through_threshold",
]


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
        UnsupportedError: a sparse, nested or quantised tensor, or torch.export with gradients.

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
    return ReplaceGradientFunction.apply(hard.detach().to(soft.dtype), soft)


def _check_hard(hard: Tensor, soft: Tensor) -> None:
    check_strided(hard, "straight_through", "hard")
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
    cast("Callable[[Tensor], Tensor]", straight_through),
    given="torch.ones(1), torch.zeros(1)",
    inputs=2,
)


def _ordered(x: Tensor, function: str) -> Tensor:
    """The values to decide by, in float32 or wider; complex numbers have neither order nor sign."""
    check_tensor(x, function)
    if x.is_complex():
        raise ArgumentTypeError(
            f"{function}: x is complex, and complex numbers have no order.",
            given=f"x of dtype {x.dtype}",
            expected="a floating dtype",
            mend="Apply it to the real and the imaginary part: torch.view_as_real(x).",
        )
    return widen(x.detach())


def straight_through_round(x: Tensor) -> Tensor:
    r"""Return ``x`` rounded to whole numbers, ties to even, with the gradient of ``x``.

    .. math:: y = \operatorname{round}(x), \qquad \bar x = \bar y

    Arguments:
        x: shape (...), any floating dtype. NaN and infinities stay as they are.

    Returns:
        Shape (...), the dtype of ``x``.

    Raises:
        ArgumentTypeError: ``x`` is no floating tensor.
        UnsupportedError: a sparse, nested or quantised tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import straight_through_round
        >>> x = torch.tensor([0.4, 1.5], requires_grad=True)
        >>> y = straight_through_round(x)
        >>> y.sum().backward()
        >>> y.detach(), x.grad
        (tensor([0., 2.]), tensor([1., 1.]))
    """
    value = _ordered(x, "straight_through_round")
    return ReplaceGradientFunction.apply(torch.round(value).to(x.dtype), x)


StraightThroughRound = module_of(straight_through_round, given="torch.tensor([0.6])")


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
        UnsupportedError: a sparse, nested or quantised tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import straight_through_sign
        >>> x = torch.tensor([0.4, -1.5], requires_grad=True)
        >>> y = straight_through_sign(x, window=1.0)
        >>> y.sum().backward()
        >>> y.detach(), x.grad
        (tensor([ 1., -1.]), tensor([1., 0.]))
    """
    value = _ordered(x, "straight_through_sign")
    hard = torch.where(torch.isnan(value), value, torch.sign(value)).to(x.dtype)
    if window is not None:
        bound = check_positive(window, x, "straight_through_sign", "window")
        x = WhereGradientFunction.apply(x, value.abs() <= bound)
    return ReplaceGradientFunction.apply(hard, x)


StraightThroughSign = module_of(straight_through_sign, given="torch.tensor([0.6])")


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
        UnsupportedError: a sparse, nested or quantised tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import straight_through_threshold
        >>> x = torch.tensor([0.4, 0.6], requires_grad=True)
        >>> y = straight_through_threshold(x, 0.5)
        >>> y.sum().backward()
        >>> y.detach(), x.grad
        (tensor([0., 1.]), tensor([1., 1.]))
    """
    value = _ordered(x, "straight_through_threshold")
    level = check_factor(threshold, x, "straight_through_threshold", "threshold")
    if isinstance(level, Tensor):
        level = level.detach()
    hard = torch.where(torch.isnan(value), value, (value > level).to(value.dtype))
    return ReplaceGradientFunction.apply(hard.to(x.dtype), x)


StraightThroughThreshold = module_of(straight_through_threshold, "0.5", given="torch.tensor([0.6])")


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
        UnsupportedError: a sparse, nested or quantised tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import straight_through_one_hot
        >>> x = torch.tensor([0.2, 0.7, 0.1], requires_grad=True)
        >>> straight_through_one_hot(x).detach()
        tensor([0., 1., 0.])
    """
    value = _ordered(x, "straight_through_one_hot")
    check_dimensions((dim,), x, "straight_through_one_hot")
    if x.ndim == 0 or x.shape[dim] == 0:
        raise ArgumentError(
            "straight_through_one_hot: there is nothing to choose from.",
            given=f"x of shape {tuple(x.shape)} along dim={dim}",
            expected="at least one entry along dim",
        )
    if x.numel() == 0:
        hard = value
    else:
        best = value.argmax(dim, keepdim=True)
        places = torch.arange(x.shape[dim], device=x.device)
        places = places.reshape([-1 if axis == dim % x.ndim else 1 for axis in range(x.ndim)])
        hard = (places == best).to(value.dtype)
        hard = torch.where(torch.isnan(value).any(dim, keepdim=True), torch.nan, hard)
    return ReplaceGradientFunction.apply(hard.to(x.dtype), x)


StraightThroughOneHot = module_of(
    straight_through_one_hot,
    given="torch.tensor([0.2, 0.8])",
    result="tensor([0., 1.])",
    check=lambda dim, function: check_dimensions((dim,), None, function),
)
