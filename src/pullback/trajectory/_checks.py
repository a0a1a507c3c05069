"""Checks of arguments, each once: what a tensor is made of and fits; steps, durations and times."""

import math
import numbers
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._text import shown
from pullback.internal.kernels._kernel import broadcast_shapes
from pullback.internal.torch import disable_torch_function, innermost, is_symbolic

__all__ = [
    "DTYPES",
    "as_tensor",
    "check_batch",
    "check_choice",
    "check_device",
    "check_fit",
    "check_floating",
    "check_named_device",
    "check_points",
    "concrete",
    "fits_within",
    "is_number",
    "plain",
    "somewhere",
    "wide_dtype",
]

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def plain(value: Any) -> Any:
    """Return a number of NumPy's as a number, an array as lists, and anything else as it is.

    A number that no float can hold, also in a list, is infinite: what asks for finite ones then
    refuses it by name.
    """
    if type(value) in (float, str):  # most are: to ask for fractions takes a microsecond
        return value
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if isinstance(value, (int, Fraction)) and abs(value) > sys.float_info.max:
        return math.inf if value > 0 else -math.inf
    return float(value) if isinstance(value, Fraction) else value


def is_number(value: Any) -> bool:
    """Whether something is a real number, which a truth is not."""
    # The two that most are come first: to ask for any kind of number takes four times as long.
    return isinstance(value, (float, int, numbers.Real)) and not isinstance(value, bool)


def are_numbers(value: Any) -> bool:
    """Whether something is a number, or lists of them."""
    return all(map(are_numbers, value)) if isinstance(value, (list, tuple)) else is_number(value)


def concrete(tensor: Tensor) -> Tensor | None:
    """The values below all transforms as a plain tensor, or ``None`` where there are none to read.

    While a graph is traced, and for fake and meta tensors, there are none. A subclass that leaves
    torch's dispatch alone is plain memory.
    """
    if torch.compiler.is_compiling() or is_symbolic():
        return None
    tensor = innermost(tensor)
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__ or tensor.is_meta:
        return None
    values = tensor.detach()
    if type(values) is Tensor:
        return values
    with disable_torch_function():
        return values.as_subclass(Tensor)


def somewhere(condition: Tensor) -> bool:
    """Whether a condition is known to hold somewhere."""
    known = concrete(condition)
    return known is not None and bool(known.any())


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """What to compute in, and the dtype of times: halves do not tell a thousand of them apart."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_choice(what: str, given: Any, choices: Sequence[Any]) -> None:
    """Refuse what is none of some words or numbers."""
    # Most are words that are known: to look at the others takes a microsecond.
    if type(given) is str and given in choices:
        return
    given = plain(given)
    if not [choice for choice in choices if type(given) is type(choice) and given == choice]:
        expected = f"one of {tuple(choices)}"
        raise ArgumentError(f"The {what} is out of range.", given=repr(given), expected=expected)


def check_named_device(device: Any) -> None:
    """Refuse what names no device of this machine; ``None`` leaves it open."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError("There is no such device.", given=repr(device)) from error


def _verb(what: str) -> str:
    return "are" if what.endswith("s") else "is"


def check_floating(what: str, value: Any, shape: str = "", least: int = 0) -> None:
    """Refuse what is no dense tensor of floating point numbers, of so many dimensions at least."""
    if not isinstance(value, Tensor) or value.dtype not in DTYPES:
        raise ArgumentTypeError(
            f"The {what} {_verb(what)} not a tensor of floating point numbers.",
            given=str(value.dtype) if isinstance(value, Tensor) else type(value).__name__,
            expected=f"float32, float64, bfloat16 or float16 {shape}".rstrip(),
        )
    if value.layout is not torch.strided:
        raise ArgumentTypeError(
            f"The {what} {_verb(what)} not a dense tensor.",
            given=f"layout {value.layout}",
            expected="a strided tensor",
            mend="Pass its to_dense().",
        )
    if value.dim() < least:
        raise ArgumentError(
            f"There are too few dimensions of the {what}.",
            given=f"shape {tuple(value.shape)}",
            expected=shape,
        )


def as_tensor(what: str, value: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number, or numbers in nested lists, as a tensor; a floating tensor as it is."""
    if isinstance(value, Tensor):
        check_floating(what, value)
        return value
    value = plain(value)
    if not are_numbers(value):
        raise ArgumentTypeError(
            f"The {what} {_verb(what)} not a number.",
            given=f"{type(value).__name__} {shown(value)}",
            expected="a number, a list of them or a floating tensor",
            mend="Pass torch.stack(tensors) where they are in a list.",
        )
    if not _is_finite(value):
        raise ArgumentError(f"The {what} is not finite.", given=repr(value))
    try:
        if isinstance(value, (int, float)):  # a copy to a device would wait for it
            return torch.full((), value, dtype=dtype, device=device)
        return torch.tensor(value, dtype=dtype, device=device)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"The {what} is no tensor of numbers.",
            given=repr(value),
            expected="a list [dof], or nested ones of equal lengths",
        ) from error


def _is_finite(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return -math.inf < value < math.inf  # a comparison, which a compiler makes of a symbol, too


def check_points(points: Tensor, *, what: str, least: int) -> None:
    """Refuse points that are not ``[..., count, dof]``, finite and as many as ``least``."""
    check_floating(what, points, "[..., count, dof]")
    if points.device.type == "meta":
        raise ArgumentTypeError(
            f"The {what} are not a tensor that lies in memory.", given="a tensor on meta"
        )
    if points.dim() < 2 or points.shape[-2] < least:
        raise ArgumentError(
            f"There are too few {what}.",
            given=f"shape {tuple(points.shape)}",
            expected=f"[..., count, dof] with count >= {least}",
        )
    if somewhere(~torch.isfinite(points)):
        raise ArgumentError(f"The {what} are not all finite.", given="NaN or infinity among them")


def check_device(what: str, tensor: Tensor, like: Tensor, others: str = "points") -> None:
    """Refuse tensors on two devices."""
    if tensor.device != like.device:
        raise ArgumentError(
            f"The {what} {_verb(what)} on another device than the {others}.",
            given=f"{tensor.device}, the {others} on {like.device}",
            mend="Move one of them with .to(device).",
        )


def check_fit(what: str, value: Tensor, like: Tensor) -> None:
    """Refuse a tensor ``[]`` or ``[..., dof]`` that does not fit points ``[..., count, dof]``."""
    check_device(what, value, like)
    if not value.dim():
        return
    dof = like.shape[-1]
    if not fits_within(value.shape[-1:], like.shape[-1:]):
        raise ArgumentError(
            f"The {what} has another number of joints than the points.",
            given=f"{tuple(value.shape)} beside points {tuple(like.shape)}",
            expected=f"a number or [..., {dof}]",
        )
    check_batch(what, value.shape[:-1], like)


def check_batch(what: str, batch: torch.Size, like: Tensor) -> None:
    """Refuse a batch that does not broadcast with that of points ``[..., count, dof]``."""
    try:
        broadcast_shapes(batch, like.shape[:-2])
    except RuntimeError:
        raise ArgumentError(
            f"The batch of the {what} does not fit that of the points.",
            given=f"{tuple(batch)} beside points {tuple(like.shape)}",
            expected=f"a batch that broadcasts with {tuple(like.shape[:-2])}",
        ) from None


def fits_within(shape: Sequence[int], within: Sequence[int]) -> bool:
    """Whether a shape is broadcast to another one."""
    pairs = zip(reversed(shape), reversed(within), strict=False)
    # Not ``have in (1, want)``, of which Dynamo says no for a number and a symbol that are equal.
    fits = (any(have == size for size in (1, want)) for have, want in pairs)
    return len(shape) <= len(within) and all(fits)
