"""`clip_gradient`: the value as it is, the gradient held within bounds."""

from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.gradients._check import check_tensor
from pullback.gradients._factor import widen
from pullback.gradients._module import module_of
from pullback.gradients._norm import (
    Dimensions,
    check_dimensions,
    check_positive,
    direction_of,
    magnitude,
    power_of_two,
)
from pullback.tensor import Function

__all__ = ["ClipGradient", "ClipGradientFunction", "clip_gradient"]


class ClipGradientFunction(Function):
    """The Function behind `clip_gradient`: not linear in the cotangent, and declared so."""

    gradient = "nonlinear"

    @staticmethod
    def forward(x: Tensor, value: float | None, norm: float | None, dim: Dimensions) -> Tensor:
        """Return a view of ``x``: no copy."""
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the bounds."""
        _, ctx.value, ctx.norm, ctx.dim = inputs

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the clipped cotangent."""
        if ctx.value is not None:
            return _clip_value(cotangent, ctx.value), None, None, None
        return _clip_norm(cotangent, ctx.norm, ctx.dim), None, None, None


def _clip_value(cotangent: Tensor, value: float) -> Tensor:
    if value > _largest(cotangent):  # as no element can be, but an infinite one
        return cotangent
    if not cotangent.is_complex():
        if cotangent.dtype.itemsize == 1:  # float8 has no clamp
            return widen(cotangent).clamp(-value, value).to(cotangent.dtype)
        return cotangent.clamp(-value, value)
    direction, length = _polar(cotangent)
    return torch.where(length > value, direction * value, cotangent).to(cotangent.dtype)


def _largest(cotangent: Tensor) -> float:
    """A bound of all finite magnitudes in a dtype, above which torch does not take a number."""
    return torch.finfo(cotangent.dtype).max * (1 + cotangent.is_complex())


def _polar(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The direction and magnitude of each complex element, also where the magnitude overflows."""
    wide = widen(tensor)
    peak = magnitude(wide)
    infinite = torch.isinf(peak)
    usable = power_of_two(peak)
    # An infinite part leaves no room for a finite one: inf + 2j points along the real axis.
    parts = [
        torch.where(infinite, torch.isinf(part) * part.sign(), part / usable)
        for part in (wide.real, wide.imag)
    ]
    relative = torch.complex(*parts)
    # The quotient is taken only where it is used: at 0 its derivative is not finite.
    length = torch.where(relative == 0, torch.ones_like(relative), relative).abs()
    return relative / length, torch.where(infinite, peak, relative.detach().abs() * usable)


def _clip_norm(cotangent: Tensor, norm: float, dim: Dimensions) -> Tensor:
    if cotangent.numel() == 0:
        return cotangent
    direction, length = direction_of(cotangent, dim)
    norm = min(norm, torch.finfo(length.dtype).max)
    # Below the bound the cotangent is as it was, to the last bit; a NaN is not below it.
    clipped = torch.where(length <= norm, widen(cotangent), direction * norm)
    return clipped.to(cotangent.dtype)


def clip_gradient(
    x: Tensor,
    value: float | None = None,
    norm: float | None = None,
    *,
    dim: Dimensions = None,
) -> Tensor:
    r"""Return ``x`` unchanged and clip the gradient that flows back to it.

    .. math:: \bar x = \min(\max(\bar y, -v), v) \quad\text{or}\quad
              \bar x = \bar y \, \min(1, n / \lVert \bar y \rVert_2)

    The backward is not linear in the cotangent and declares it: forward mode, which is the
    transpose of a linear map, is refused by name. A complex gradient keeps its phase and has its
    magnitude clipped. NaN stays NaN; an infinite gradient is clipped by value and becomes NaN
    by norm, for it has no direction. The result shares its memory with ``x``.

    The clipping of Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural
    networks" (ICML 2013, https://arxiv.org/abs/1211.5063), at one tensor of the graph.

    Arguments:
        x: shape (...), any floating or complex dtype.
        value: the largest magnitude of one element, > 0.
        norm: the largest Euclidean norm, > 0, measured in float32 or wider. Give either
            ``value`` or ``norm``. Under vmap each sample has its own norm.
        dim: the dimensions over which the norm is taken, each slice on its own; ``None`` takes
            the whole tensor.

    Returns:
        A view of ``x``.

    Raises:
        ArgumentTypeError: ``x`` or a bound has no usable type.
        ArgumentError: not exactly one bound, one that is not positive, or an unknown ``dim``.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import clip_gradient
        >>> x = torch.zeros(2, requires_grad=True)
        >>> (clip_gradient(x, norm=1.0) * torch.tensor([3.0, 4.0])).sum().backward()
        >>> x.grad
        tensor([0.6000, 0.8000])
    """
    check_tensor(x, "clip_gradient")
    value, norm = _check_bounds(value, norm, dim, "clip_gradient")
    return ClipGradientFunction.apply(x, value, norm, check_dimensions(dim, x, "clip_gradient"))


def _check_bounds(
    value: float | None, norm: float | None, dim: Dimensions, function: str
) -> tuple[float | None, float | None]:
    if (value is None) == (norm is None):
        raise ArgumentError(
            f"{function} clips either by value or by norm.",
            given=f"value={value!r}, norm={norm!r}",
            expected="exactly one of them",
        )
    if value is not None:
        if dim is not None:
            raise ArgumentError(
                f"{function}: dim belongs to norm; a value bounds each element on its own.",
                given=f"value={value!r}, dim={dim!r}",
                mend="Leave dim out, or pass norm.",
            )
        return check_positive(value, function, "value"), None
    return None, check_positive(norm, function, "norm")


ClipGradient = module_of(
    clip_gradient,
    ">>> ClipGradient(norm=1.0)(torch.ones(1))\ntensor([1.])",
    _check_bounds,
)
