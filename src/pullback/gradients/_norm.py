"""The norm and direction of a cotangent, without overflow, and the checks of its arguments."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.gradients._factor import check_number, widen

__all__ = [
    "Dimensions",
    "check_dimensions",
    "check_positive",
    "direction_of",
    "magnitude",
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
        NaN where it is not finite. The norm, with size 1 where it was summed; infinite where it
        overflows.
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
    # A zero tensor has no direction and stays zero, with a finite derivative.
    direction = relative / torch.where(length == 0, torch.ones_like(length), length)
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


def check_dimensions(dim: Dimensions, x: Tensor, function: str) -> Dimensions:
    """Return the dimensions as given, or refuse those that ``x`` does not have.

    Raises:
        ArgumentTypeError: not integers.
        ArgumentError: a dimension that ``x`` does not have, or one named twice.
    """
    if dim is None:
        return None
    axes = (dim,) if not isinstance(dim, Iterable) else tuple(dim)
    if not all(isinstance(axis, int) and not isinstance(axis, bool) for axis in axes):
        raise ArgumentTypeError(
            f"{function}: dim is not an integer or several.", given=f"dim={dim!r}"
        )
    rank = max(x.ndim, 1)
    if any(not -rank <= axis < rank for axis in axes):
        raise ArgumentError(
            f"{function}: x does not have this dimension.",
            given=f"dim={dim!r} for x of shape {tuple(x.shape)}",
            expected=f"-{rank} <= dim < {rank}",
        )
    if len({axis % rank for axis in axes}) != len(axes) or not axes:
        raise ArgumentError(
            f"{function}: dim names a dimension twice, or none.", given=f"dim={dim!r}"
        )
    return axes if x.ndim else None
