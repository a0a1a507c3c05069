"""Check what a trajectory is made from: points, times and what is known at the ends."""

import math
import numbers
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal.kernels._shapes import broadcast_shapes
from pullback.internal.torch import disable_torch_function, innermost, is_symbolic
from pullback.trajectory._plain import plain
from pullback.trajectory._state import State

__all__ = [
    "MOST_SECONDS",
    "broadcast_batch",
    "check_device",
    "check_fit",
    "check_floating",
    "check_increasing",
    "check_is_state",
    "check_points",
    "check_span",
    "check_state",
    "concrete",
    "from_numbers",
    "is_number",
    "normalise_duration",
    "normalise_times",
    "state_part",
    "take_seconds",
]

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

MOST_SECONDS = 1e40
"""The longest duration to compute with; its inverse is the shortest."""


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


def check_floating(what: str, value: Any, shape: str = "", least: int = 0) -> None:
    """Refuse what is not a dense tensor of floating point numbers.

    Arguments:
        what: its name, in the plural or not.
        value: anything.
        shape: what is expected of it.
        least: how many dimensions it must have.

    Raises:
        ArgumentTypeError: no tensor, a dtype without arithmetic for it, or another layout.
        ArgumentError: fewer dimensions.
    """
    if not isinstance(value, Tensor) or value.dtype not in _DTYPES:
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


def _verb(what: str) -> str:
    return "are" if what.endswith("s") else "is"


def check_device(what: str, tensor: Tensor, like: Tensor, others: str = "points") -> None:
    """Refuse tensors on two devices.

    Raises:
        ArgumentError: they are.
    """
    if tensor.device != like.device:
        raise ArgumentError(
            f"The {what} {_verb(what)} on another device than the {others}.",
            given=f"{tensor.device}, the {others} on {like.device}",
            mend="Move one of them with .to(device).",
        )


def is_number(value: Any) -> bool:
    """Whether something is a number of Python's, which a truth is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def take_seconds(
    what: str,
    value: Any,
    like: Tensor,
    dtype: torch.dtype = torch.float64,
    *,
    several: bool = False,
) -> Tensor:
    """A number, or numbers in a list where there are several, as a tensor; a floating one as it is.

    Raises:
        ArgumentTypeError: something else.
    """
    value = plain(value)
    if several and isinstance(value, (list, tuple)):
        if all(isinstance(each, numbers.Real) for each in value):
            value = torch.tensor([float(t) for t in value], dtype=dtype, device=like.device)
    elif not several and is_number(value):
        value = torch.full((), float(value), dtype=dtype, device=like.device)
    if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
        raise ArgumentTypeError(
            f"The {what} are not a sequence of floating point numbers."
            if several
            else f"The {what} is not a number, nor a floating tensor.",
            given=str(value.dtype) if isinstance(value, Tensor) else type(value).__name__,
            expected="seconds",
            mend="Pass torch.stack(numbers) where they are tensors in a list."
            if several
            else "Pass a float, or torch.tensor(numbers).",
        )
    return value


def check_points(points: Tensor, *, what: str, least: int) -> None:
    """Refuse points that are not ``[..., count, dof]`` of a floating dtype.

    Raises:
        ArgumentTypeError: not a tensor, or not of a real floating dtype.
        ArgumentError: too few points, or values that are not finite.
    """
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
    values = concrete(points)
    if values is not None and not bool(torch.isfinite(values).all()):
        raise ArgumentError(f"The {what} are not all finite.", given="NaN or infinity among them")


def normalise_duration(duration: Any, like: Tensor) -> Tensor:
    """A duration as a tensor ``[...]`` beside points ``[..., count, dof]``.

    Raises:
        ArgumentTypeError: not a number or a floating tensor.
        ArgumentError: not positive, not finite, on another device or of another batch.
    """
    duration = take_seconds("duration", duration, like)
    check_device("duration", duration, like)
    broadcast_batch("duration", duration.shape, like)
    values = concrete(duration)
    if values is not None and not bool(((values > 0) & torch.isfinite(values)).all()):
        raise ArgumentError(
            "A duration must be positive.",
            given=f"{values.min().item():.6g}" if values.numel() else "an empty tensor",
            expected="finite seconds > 0",
        )
    check_span("duration", duration)
    return duration


def normalise_times(times: Any, like: Tensor) -> Tensor:
    """Increasing times, one for each point, as a tensor ``[..., count]``.

    Raises:
        ArgumentTypeError: not numbers or a floating tensor.
        ArgumentError: a wrong number of times, times that do not increase or are not finite.
    """
    times = take_seconds("times", times, like, several=True)
    check_device("times", times, like)
    count = like.shape[-2]
    if times.dim() < 1 or times.shape[-1] != count:
        raise ArgumentError(
            "There must be one time for each point.",
            given=f"times {tuple(times.shape)}, points {tuple(like.shape)}",
            expected=f"[..., {count}]",
        )
    broadcast_batch("times", times.shape[:-1], like)
    check_increasing("times", times)
    check_span("times", times[..., -1] - times[..., 0])
    return times


def check_span(what: str, seconds: Tensor) -> None:
    """Refuse durations whose sixth powers, which jerk asks for, no float64 can hold.

    Raises:
        ArgumentError: there are some.
    """
    values = concrete(seconds)
    if values is not None and not bool(
        ((values > 1 / MOST_SECONDS) & (values < MOST_SECONDS)).all()
    ):
        raise ArgumentError(
            f"The {what} span too short or too long a time to compute with.",
            given=f"{values.min().item():.6g} to {values.max().item():.6g} s",
            expected=f"between {1 / MOST_SECONDS:g} and {MOST_SECONDS:g} s",
        )


def check_increasing(what: str, times: Tensor) -> None:
    """Refuse times that are not finite or do not increase, where their values are known.

    Raises:
        ArgumentError: they do not.
    """
    values, steps = concrete(times), concrete(times.diff(dim=-1))
    if values is None or steps is None:
        return
    if not bool(torch.isfinite(values).all()) or not bool((steps > 0).all()):
        raise ArgumentError(
            f"The {what} must be finite and increase strictly.",
            given=str(values.flatten()[:8].tolist()),
            expected="each time later than the one before, in seconds",
        )


def check_is_state(name: str, state: Any) -> None:
    """Refuse what is not a `State`.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not isinstance(state, State):
        raise ArgumentTypeError(
            f"The {name} is not a State.",
            given=type(state).__name__,
            expected="pullback.trajectory.State, such as rest or State(velocity=0.0)",
        )


def check_state(name: str, state: Any, like: Tensor) -> None:
    """Refuse what is not a `State` that fits points ``[..., count, dof]``.

    Raises:
        ArgumentTypeError: not a state, or a part that is not a floating tensor.
        ArgumentError: a part of another dof, batch or device, or not finite.
    """
    check_is_state(name, state)
    for part in state.given:
        value = getattr(state, part)
        if isinstance(value, tuple):
            value = from_numbers(f"{part} of the {name}", value, like)
        if not isinstance(value, Tensor):
            if not isinstance(value, (int, float)):
                raise ArgumentTypeError(
                    f"The {part} of the {name} is not a number.",
                    given=type(value).__name__,
                    expected="a number, a list of them or a floating tensor",
                )
            if not math.isfinite(value):
                raise ArgumentError(f"The {part} of the {name} is not finite.", given=repr(value))
            continue
        check_floating(f"{part} of the {name}", value)
        check_fit(f"{part} of the {name}", value, like)
        known = concrete(value)
        if known is not None and not bool(torch.isfinite(known).all()):
            raise ArgumentError(f"The {part} of the {name} is not finite.", given="NaN or infinity")


def check_fit(what: str, value: Tensor, like: Tensor) -> None:
    """Refuse a tensor ``[]`` or ``[..., dof]`` that does not fit points ``[..., count, dof]``.

    Raises:
        ArgumentError: another dof, batch or device.
    """
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
    broadcast_batch(what, value.shape[:-1], like)


def state_part(state: State, part: str, like: Tensor) -> Tensor:
    """A part of a state, which must be given, as float64 ``[..., 1, dof]`` beside the points."""
    value = getattr(state, part)
    if isinstance(value, tuple):
        value = from_numbers(part, value, like)
    if not isinstance(value, Tensor):
        value = torch.full((), float(value), dtype=torch.float64, device=like.device)
    value = value.to(torch.float64)
    return (value if value.dim() else value.unsqueeze(-1)).unsqueeze(-2)


def from_numbers(name: str, given: Any, like: Tensor) -> Tensor:
    """Numbers in nested tuples as a tensor of the dtype and on the device of another.

    Raises:
        ArgumentError: the rows differ in length.
    """
    try:
        return torch.tensor(given, dtype=like.dtype, device=like.device)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"The {name} is no tensor of numbers.",
            given=repr(given),
            expected="a list [dof], or nested ones of equal lengths",
        ) from error


def broadcast_batch(what: str, batch: torch.Size, like: Tensor) -> torch.Size:
    """The common batch of something beside points ``[..., count, dof]``.

    Raises:
        ArgumentError: the two cannot be broadcast.
    """
    try:
        return broadcast_shapes(batch, like.shape[:-2])
    except RuntimeError:
        raise ArgumentError(
            f"The batch of the {what} does not fit that of the points.",
            given=f"{tuple(batch)} beside points {tuple(like.shape)}",
            expected=f"a batch that broadcasts with {tuple(like.shape[:-2])}",
        ) from None
