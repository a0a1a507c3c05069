"""Seconds as arguments: times, steps and durations, and what the arithmetic holds of them."""

from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal.torch import innermost
from pullback.trajectory._checks import (
    DTYPES,
    check_batch,
    check_device,
    check_floating,
    concrete,
    fits_within,
    is_number,
    plain,
    somewhere,
    wide_dtype,
)

__all__ = [
    "MOST_SECONDS",
    "check_increasing",
    "check_range",
    "check_span",
    "check_step",
    "check_steps",
    "check_steps_shape",
    "normalise_duration",
    "normalise_times",
    "step_rows",
    "take_seconds",
]

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
