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
    "MOST_SECONDS",
    "as_tensor",
    "check_batch",
    "check_choice",
    "check_device",
    "check_fit",
    "check_floating",
    "check_increasing",
    "check_named_device",
    "check_points",
    "check_range",
    "check_span",
    "check_step",
    "check_steps",
    "check_steps_shape",
    "concrete",
    "fits_within",
    "is_number",
    "normalise_duration",
    "normalise_times",
    "plain",
    "somewhere",
    "step_rows",
    "take_seconds",
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
    if value.shape[-1] not in (1, dof):
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
    return len(shape) <= len(within) and all(have in (1, want) for have, want in pairs)


MOST_SECONDS = 1e40
"""The longest duration to compute with; its inverse is the shortest."""

_NUMBERS = {dtype: torch.finfo(dtype) for dtype in (torch.float32, torch.float64)}
# The shortest and the longest step whose power is held: of jerk by differences, which weighs
# samples by some hundreds of the inverse cube at most, and of sums up to the third.
_STEPS = {
    (dtype, power): (number.tiny, number.max ** (1 / power))
    for dtype, number in _NUMBERS.items()
    for power in (1, 2, 3)
} | {(dtype, -3): ((1000 / n.max) ** (1 / 3), n.max) for dtype, n in _NUMBERS.items()}

# In words, made once: a compiler that takes numbers for symbols makes no text of them.
_HELD = {
    (dtype, power): f"in seconds, that {dtype} can hold"
    + f" with its power {power}: from {low:.2g} to {high:.2g} s" * (power != 1)
    for (dtype, power), (low, high) in _STEPS.items()
}


def take_seconds(
    what: str,
    value: Any,
    like: Tensor,
    dtype: torch.dtype = torch.float64,
    *,
    several: bool = False,
) -> Tensor:
    """A number, or where there are several numbers in a list, as a tensor; a tensor as it is."""
    value = plain(value)
    listed = isinstance(value, (list, tuple))
    if listed == several and all(map(is_number, value if listed else [value])):
        return torch.tensor(value, dtype=dtype, device=like.device)
    dense = isinstance(value, Tensor) and value.layout is torch.strided
    if not dense or value.dtype not in DTYPES:
        words, mend = (
            ("are not a sequence of floating point numbers", "torch.stack(numbers) of a list")
            if several
            else ("is not a number, nor a floating tensor", "a float, or torch.tensor(numbers)")
        )
        raise ArgumentTypeError(
            f"The {what} {words}.",
            given=f"{value.dtype}, {value.layout}"
            if isinstance(value, Tensor)
            else type(value).__name__,
            expected="seconds",
            mend=f"Pass {mend}.",
        )
    return value


def check_range(what: str, seconds: Tensor | float, low: float, high: float, expected: str) -> None:
    """Refuse seconds, where their values are known, that are not from one number to another."""
    if isinstance(seconds, Tensor):
        values = concrete(seconds)
        if values is None:
            return
        exact = values.to(torch.float64)  # in which the two numbers are what they are
        fine = (exact >= low) & (exact <= high)
        if bool(fine.all()):
            return
        seconds = values[~fine].flatten()[0].item()
    elif low <= seconds <= high:
        return
    must = "finite" if low < 0 else "positive"
    raise ArgumentError(f"The {what} must be {must}.", given=f"{what}={seconds}", expected=expected)


def check_steps(
    what: str, dt: Any, samples: Tensor, steps: int, *, power: int = 1, wait: bool = True
) -> Any:
    """Refuse time steps that are not positive seconds of the right shape.

    The arithmetic must hold the ``power`` of them that is computed with. Values elsewhere than on
    the CPU are read only where that may ``wait`` for a device. Returns them: a number, as one of
    Python's, or a tensor ``[]``, ``[steps]`` or ``[..., steps]``.
    """
    dt = plain(dt)
    if not is_number(dt):
        check_floating(what, dt, "of seconds, or a number")
        check_steps_shape(what, dt, samples, steps)
        if not wait and dt.device.type != "cpu":
            return dt
    check_step(what, dt, wide_dtype(samples.dtype), power)
    return dt


def check_step(what: str, dt: Tensor | float, dtype: torch.dtype, power: int) -> None:
    """Refuse steps that are not positive, or whose power the arithmetic does not hold."""
    check_range(what, dt, *_STEPS[dtype, power], f"{what} > 0, {_HELD[dtype, power]}")


def check_steps_shape(what: str, dt: Tensor, samples: Tensor, steps: int) -> None:
    """Refuse steps that are not ``[]``, ``[steps]`` or ``[..., steps]``."""
    batch = samples.shape[:-2]
    if dt.ndim and not (dt.shape[-1] == steps and fits_within(dt.shape[:-1], batch)):
        raise ArgumentError(
            f"The {what} has the wrong length.",
            given=f"shape {tuple(dt.shape)} for samples of shape {tuple(samples.shape)}",
            expected=f"a number, [{steps}] or {[*batch, steps]}",
        )


def step_rows(dt: Tensor, samples: Tensor) -> Tensor:
    """Steps ``[]``, ``[steps]`` or ``[..., steps]`` as ``[1 or trajectories, 1 or steps]``."""
    if dt.ndim < 2:
        return dt.reshape(1, -1)
    batch, steps = samples.shape[:-2], dt.shape[-1]
    return dt.expand(*batch, steps).reshape(batch.numel(), steps)


def normalise_duration(duration: Any, like: Tensor) -> Tensor:
    """A duration as a tensor ``[...]`` beside points ``[..., count, dof]``."""
    duration = take_seconds("duration", duration, like)
    check_device("duration", duration, like)
    check_batch("duration", duration.shape, like)
    number = _NUMBERS[torch.float64]
    check_range("duration", duration, number.smallest_normal, number.max, "finite seconds > 0")
    check_span("duration", duration)
    return duration


def normalise_times(times: Any, like: Tensor) -> Tensor:
    """Increasing times, one for each point, as a tensor ``[..., count]``."""
    times = take_seconds("times", times, like, several=True)
    check_device("times", times, like)
    count = like.shape[-2]
    if times.dim() < 1 or times.shape[-1] != count:
        raise ArgumentError(
            "There must be one time for each point.",
            given=f"times {tuple(times.shape)}, points {tuple(like.shape)}",
            expected=f"[..., {count}]",
        )
    check_batch("times", times.shape[:-1], like)
    check_increasing("times", times)
    check_span("times", times[..., -1] - times[..., 0])
    return times


def check_span(what: str, seconds: Tensor) -> None:
    """Refuse durations whose sixth powers, which jerk asks for, no float64 can hold."""
    if somewhere(~((seconds > 1 / MOST_SECONDS) & (seconds < MOST_SECONDS))):
        values = innermost(seconds)
        raise ArgumentError(
            f"The {what} span too short or too long a time to compute with.",
            given=f"{values.min().item():.6g} to {values.max().item():.6g} s",
            expected=f"between {1 / MOST_SECONDS:g} and {MOST_SECONDS:g} s",
        )


def check_increasing(what: str, times: Tensor, steps: Tensor | None = None) -> None:
    """Refuse times that are not finite or do not increase, or steps known to more digits."""
    steps = times.diff(dim=-1) if steps is None else steps
    if somewhere(~torch.isfinite(times)) or somewhere(~(steps > 0)):
        raise ArgumentError(
            f"The {what} must be finite and increase strictly.",
            given=str(innermost(times).flatten()[:8].tolist()),
            expected="each time later than the one before, in seconds",
        )
