"""The arguments beside tensors: what refuses each, in a function and where a module keeps it.

A module has no ``x`` yet when it is constructed, and checks what can be said without one.
"""

import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.gradients._check import Factor, can_look_into, check_factor, check_fits, check_number
from pullback.internal._arguments import is_whole
from pullback.internal._dtypes import PACKED
from pullback.internal.torch import graph_break

__all__ = [
    "Dimensions",
    "check_bounds",
    "check_dimensions",
    "check_dtype",
    "check_generator",
    "check_kept",
    "check_mask",
    "check_positive",
    "check_std",
]

Dimensions = int | Sequence[int] | None
"""The dimensions that a norm is taken over; ``None`` is all of them."""


def check_positive(number: Any, x: Tensor | None, function: str, name: str) -> float:
    """Return a plain positive number, or refuse what is none."""
    plain = check_number(number, function, name)
    if isinstance(plain, complex) or not plain > 0:
        raise ArgumentError(
            f"{function}: {name} is not a positive real number.",
            given=f"{name}={number!r}",
            expected=f"{name} > 0",
        )
    return plain


def check_dimensions(
    dim: Any, x: Tensor | None, function: str, name: str = "dim"
) -> tuple[int, ...] | None:
    """Return the dimensions, or refuse what is none, or none that ``x`` has."""
    if dim is None:
        return None
    axes = tuple(dim) if isinstance(dim, Iterable) else (dim,)
    if not all(is_whole(axis) for axis in axes):
        raise ArgumentTypeError(
            f"{function}: {name} is not an integer or several.", given=f"{name}={dim!r}"
        )
    axes = tuple(int(axis) for axis in axes)
    if not axes:
        raise ArgumentError(f"{function}: {name} names no dimension.", given=f"{name}={dim!r}")
    if x is None:
        return axes
    rank = max(x.ndim, 1)
    if any(not -rank <= axis < rank for axis in axes):
        raise ArgumentError(
            f"{function}: x does not have this dimension.",
            given=f"{name}={dim!r} for x of shape {tuple(x.shape)}",
            expected=f"-{rank} <= {name} < {rank}",
        )
    if len({axis % rank for axis in axes}) != len(axes):
        raise ArgumentError(f"{function}: {name} names a dimension twice.", given=f"{name}={dim!r}")
    return axes if x.ndim else None


def check_bounds(
    value: float | None, norm: float | None, dim: Dimensions, x: Tensor | None, function: str
) -> tuple[float | None, float | None, tuple[int, ...] | None]:
    """Return the one bound that is given, and the dimensions of a norm."""
    if (value is None) == (norm is None):
        raise ArgumentError(
            f"{function} clips either by value or by norm.",
            given=f"value={value!r}, norm={norm!r}",
            expected="exactly one of them",
        )
    axes = check_dimensions(dim, x, function)
    if value is None:
        return None, check_positive(norm, x, function, "norm"), axes
    if dim is not None:
        raise ArgumentError(
            f"{function}: dim belongs to norm; a value bounds each element on its own.",
            given=f"value={value!r}, dim={dim!r}",
            mend="Leave dim out, or pass norm.",
        )
    return check_positive(value, x, function, "value"), None, None


def check_mask(mask: Any, x: Tensor | None, function: str, name: str = "mask") -> Tensor:
    """Return a mask, or refuse what is no tensor of booleans that broadcasts to ``x``."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.layout != torch.strided:
        given = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ArgumentTypeError(
            f"{function}: the {name} is not a tensor of booleans.",
            given=f"{name}: {given}",
            expected="a strided tensor of dtype torch.bool",
            mend="Compare: mask = weights > 0.",
        )
    if x is not None:
        check_fits(mask, x, function, name)
    return mask


def check_dtype(dtype: Any, x: Tensor | None, function: str, name: str = "dtype") -> torch.dtype:
    """Return a dtype to round to, or refuse what is none, or complex for a real ``x``."""
    usable = isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)
    if not usable or dtype in PACKED:
        raise ArgumentTypeError(
            f"{function}: not a dtype that gradients can be rounded to.",
            given=f"{name}={dtype!r}",
            expected="a floating or complex torch.dtype with one value an element",
        )
    if x is not None and dtype.is_complex != x.is_complex():
        raise ArgumentTypeError(
            f"{function}: the dtype and x are not both real or both complex.",
            given=f"{name}={dtype} for x of dtype {x.dtype}",
            expected="a complex dtype for a complex x, a floating one for a real x",
        )
    return dtype


def check_std(std: Any, x: Tensor | None, function: str, name: str = "std") -> Factor:
    """Return a standard deviation, or refuse what is none."""
    # Before `check_factor`, which takes a complex one for a complex x.
    number = isinstance(std, numbers.Complex) and not isinstance(std, numbers.Real)
    if number or (isinstance(std, Tensor) and std.is_complex()):
        raise ArgumentTypeError(
            f"{function}: {name} is complex.",
            given=f"{name}={std!r}",
            expected=f"a real {name} >= 0",
            mend=f"Pass {name}.real.",
        )
    real: Any = check_factor(std, x, function, name)
    seen = can_look_into(real) and bool((real < 0).any()) if isinstance(real, Tensor) else real < 0
    if seen:
        raise ArgumentError(
            f"{function}: {name} is negative.", given=f"{name}={real}", expected=f"{name} >= 0"
        )
    return real


def check_generator(
    generator: Any, x: Tensor | None, function: str, name: str = "generator"
) -> torch.Generator | None:
    """Return a generator or ``None``, or refuse what is neither, or one that would be traced."""
    if generator is None:
        return None
    if not isinstance(generator, torch.Generator):
        raise ArgumentTypeError(
            f"{function}: {name} is no torch.Generator.",
            given=f"{name} of type {type(generator).__name__}",
            mend="Pass torch.Generator().manual_seed(seed), or None.",
        )
    if torch.compiler.is_dynamo_compiling():
        # An exception of ours cannot be raised while Dynamo traces; its graph break carries text.
        graph_break(
            f"{function} cannot use a generator inside of a compiled graph. Leave it "
            "out and call torch.manual_seed, or compile without fullgraph=True."
        )
    return generator


# A name means one thing in all functions of the room. They call the checks themselves, by place:
# to bind arguments to names first would cost each call as much as the rest of it.
_CHECKS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("factor", "strength", "forward", "backward", "threshold"), check_factor),
    "dim": check_dimensions,
    "dtype": check_dtype,
    "generator": check_generator,
    "mask": check_mask,
    "norm": check_positive,
    "std": check_std,
    "window": lambda window, *rest: window is None or check_positive(window, *rest),
}


def check_kept(function: str, **arguments: Any) -> None:
    """Refuse what a module cannot keep: each argument by its name, before there is an ``x``."""
    flags = {"allow_nan": arguments.pop("allow_nan")} if "allow_nan" in arguments else {}
    for name, value in arguments.items():
        _CHECKS[name](value, None, function, name, **flags)
