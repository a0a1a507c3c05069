"""`clip_gradient`, `normalise_gradient`: the gradient held within bounds, or to a norm."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.gradients._check import check_tensor
from pullback.gradients._factor import check_number, widen
from pullback.gradients._module import module_of
from pullback.tensor import Function

__all__ = [
    "ClipGradient",
    "ClipGradientFunction",
    "Dimensions",
    "NormaliseGradient",
    "NormaliseGradientFunction",
    "check_axes",
    "check_dimensions",
    "check_positive",
    "clip_gradient",
    "direction_of",
    "magnitude",
    "normalise_gradient",
    "power_of_two",
]


Dimensions = int | Sequence[int] | None
"""The dimensions that a norm is taken over; ``None`` is all of them."""


def direction_of(tensor: Tensor, dim: Dimensions) -> tuple[Tensor, Tensor]:
    r"""Return the direction of a tensor over ``dim`` and its norm, in float32 or wider.

    The values are divided by the largest first, so that neither 1e30 nor 1e-30 in float32 is
    lost when it is squared, and the direction is finite where the norm itself overflows:

    .. math:: \frac{y}{\lVert y \rVert} = \frac{y / p}{\lVert y / p \rVert}

    For p the power of two below the largest is taken, which is exact and changes in steps: the
    right side does not depend on it, so neither does its derivative.

    Arguments:
        tensor: shape (...), any floating or complex dtype, not empty.
        dim: the dimensions to sum over; ``None`` sums over all.

    Returns:
        The direction, of the shape of ``tensor``: of norm 1, zero where the tensor is zero, and
        NaN throughout a sum in which an element is not finite. The norm, with size 1 where it was
        summed; infinite where it overflows.
    """
    wide = widen(tensor)
    axes = (
        tuple(range(wide.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    )
    peak = power_of_two(magnitude(wide).amax(axes, keepdim=True))
    # By parts: torch's quotient of complex numbers is NaN where the divisor is subnormal.
    relative = (
        torch.complex(wide.real / peak, wide.imag / peak) if wide.is_complex() else wide / peak
    )
    length = torch.linalg.vector_norm(relative, dim=axes, keepdim=True)
    # A zero tensor has no direction and stays zero, with a finite derivative. What is not finite
    # has none either: divided by infinity its finite elements would be zeros that nobody computed.
    divisor = torch.where(torch.isfinite(length), length, torch.nan)
    direction = relative / torch.where(length == 0, torch.ones_like(length), divisor)
    return direction, length * peak


def power_of_two(size: Tensor) -> Tensor:
    """The power of two below each positive number, and one where there is none.

    Its derivative is zero wherever there is one.
    """
    usable = torch.where((size > 0) & torch.isfinite(size), size, torch.ones_like(size))
    largest = math.frexp(torch.finfo(size.dtype).max)[1] - 1  # to which the logarithm may round up
    return torch.exp2(torch.floor(torch.log2(usable)).clamp(max=largest))


def magnitude(tensor: Tensor) -> Tensor:
    """Return the largest absolute part of each element, which does not overflow."""
    if not tensor.is_complex():
        return tensor.abs()
    return torch.maximum(tensor.real.abs(), tensor.imag.abs())


def check_positive(number: object, function: str, name: str) -> float:
    """Return a plain positive number, or refuse what is none.

    Raises:
        ArgumentTypeError: not a real number.
        ArgumentError: not positive, NaN or infinite.
    """
    if isinstance(number, Tensor):
        raise ArgumentTypeError(
            f"{function}: {name} is a tensor.",
            given=f"{name} of shape {tuple(number.shape)}",
            expected="a number",
            mend=f"Pass {name}.item().",
        )
    plain = check_number(number, function, name=name)
    if isinstance(plain, complex) or not plain > 0:
        raise ArgumentError(
            f"{function}: {name} is not a positive real number.",
            given=f"{name}={number!r}",
            expected=f"{name} > 0",
        )
    return plain


def check_axes(dim: Dimensions, function: str) -> tuple[int, ...] | None:
    """Return the dimensions, all that can be said of them without a tensor.

    Raises:
        ArgumentTypeError: not integers.
        ArgumentError: none at all.
    """
    if dim is None:
        return None
    axes = (dim,) if not isinstance(dim, Iterable) else tuple(dim)
    if not all(isinstance(axis, int) and not isinstance(axis, bool) for axis in axes):
        raise ArgumentTypeError(
            f"{function}: dim is not an integer or several.", given=f"dim={dim!r}"
        )
    if not axes:
        raise ArgumentError(f"{function}: dim names no dimension.", given=f"dim={dim!r}")
    return axes


def check_dimensions(dim: Dimensions, x: Tensor, function: str) -> Dimensions:
    """Return the dimensions as given, or refuse those that ``x`` does not have.

    Raises:
        ArgumentTypeError: not integers.
        ArgumentError: a dimension that ``x`` does not have, or one named twice.
    """
    axes = check_axes(dim, function)
    if axes is None:
        return None
    rank = max(x.ndim, 1)
    if any(not -rank <= axis < rank for axis in axes):
        raise ArgumentError(
            f"{function}: x does not have this dimension.",
            given=f"dim={dim!r} for x of shape {tuple(x.shape)}",
            expected=f"-{rank} <= dim < {rank}",
        )
    if len({axis % rank for axis in axes}) != len(axes):
        raise ArgumentError(f"{function}: dim names a dimension twice.", given=f"dim={dim!r}")
    return axes if x.ndim else None


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
    magnitude clipped. NaN stays NaN; an infinite element is clipped by value. By norm, one element
    that is NaN or infinite makes all of its norm NaN: they have no direction together. The result
    shares its memory with ``x``.

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
    check_axes(dim, function)
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


class NormaliseGradientFunction(Function):
    """The Function behind `normalise_gradient`: not linear in the cotangent, declared so."""

    gradient = "nonlinear"

    @staticmethod
    def forward(x: Tensor, norm: float, dim: Dimensions) -> Tensor:
        """Return a view of ``x``: no copy."""
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the norm."""
        _, ctx.norm, ctx.dim = inputs

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        """Return the cotangent with the given norm; a zero one stays zero."""
        if cotangent.numel() == 0:
            return cotangent, None, None
        direction, _ = direction_of(cotangent, ctx.dim)
        return (direction * ctx.norm).to(cotangent.dtype), None, None


def normalise_gradient(x: Tensor, norm: float = 1.0, *, dim: Dimensions = None) -> Tensor:
    r"""Return ``x`` unchanged and bring the gradient that flows back to it to a given norm.

    .. math:: y = x, \qquad \bar x = n \, \bar y / \lVert \bar y \rVert_2

    A zero gradient stays zero. The backward is not linear in the cotangent and declares it:
    forward mode is refused by name. One element that is NaN or infinite makes all of its norm NaN.
    The result shares its memory with ``x``.

    Arguments:
        x: shape (...), any floating or complex dtype.
        norm: the Euclidean norm of the result, > 0, measured in float32 or wider. Under vmap
            each sample has its own.
        dim: the dimensions over which the norm is taken, each slice on its own; ``None`` takes
            the whole tensor.

    Returns:
        A view of ``x``.

    Raises:
        ArgumentTypeError: ``x`` or the norm has no usable type.
        ArgumentError: the norm is not positive, or an unknown ``dim``.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import normalise_gradient
        >>> x = torch.zeros(2, requires_grad=True)
        >>> (normalise_gradient(x, 10.0) * torch.tensor([3.0, 4.0])).sum().backward()
        >>> x.grad
        tensor([6., 8.])
    """
    check_tensor(x, "normalise_gradient")
    norm = check_positive(norm, "normalise_gradient", "norm")
    axes = check_dimensions(dim, x, "normalise_gradient")
    return NormaliseGradientFunction.apply(x, norm, axes)


NormaliseGradient = module_of(
    normalise_gradient,
    ">>> NormaliseGradient()(torch.ones(1))\ntensor([1.])",
    lambda norm, dim, function: (
        check_positive(norm, function, "norm"),
        check_axes(dim, function),
    ),
)
