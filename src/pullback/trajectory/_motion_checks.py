"""What a `Motion` may be made of."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory._knots import check_floating, concrete, take_seconds

__all__ = ["check_dtype", "check_parts", "check_steps", "take_start", "take_steps"]


def check_dtype(dtype: Any) -> None:
    """Refuse what is not a floating dtype."""
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ArgumentTypeError(
            "A motion has a floating dtype.", given=repr(dtype), expected="torch.float64, ..."
        )


def check_parts(parts: Mapping[str, Any]) -> None:
    """Refuse parts that are not floating tensors ``[..., horizon, dof]`` of one shape."""
    for name, part in parts.items():
        check_floating(f"{name} of a motion", part, "[..., horizon, dof]", 2)
    shapes = [part.shape for part in parts.values()]
    if any(shape != shapes[0] for shape in shapes):
        raise ArgumentError(
            "A motion needs position, velocity, acceleration and jerk of one shape.",
            given=", ".join(str(tuple(shape)) for shape in shapes),
            expected="four times [..., horizon, dof]",
        )


def take_steps(dt: Any, position: Tensor, dtype: torch.dtype) -> Tensor:
    """The steps of a motion in seconds as a tensor, a number in the given dtype."""
    steps = take_seconds("dt of a motion", dt, position, dtype)
    check_steps(steps, position)
    _check_values("dt", steps, 0.0, "positive, finite seconds")
    return steps


def check_steps(steps: Tensor, position: Tensor) -> None:
    """Refuse steps of another shape than the samples have."""
    *batch, horizon, _ = position.shape
    fits = not steps.ndim or (
        steps.shape[-1] == max(horizon - 1, 0) and _fits(steps.shape[:-1], batch)
    )
    if not fits:
        raise ArgumentError(
            "The dt of a motion does not fit its samples.",
            given=f"dt of shape {tuple(steps.shape)} for {horizon} samples of batch {(*batch,)}",
            expected=f"a number, [{max(horizon - 1, 0)}] or [..., {max(horizon - 1, 0)}]",
        )


def take_start(start: Any, position: Tensor) -> Tensor | None:
    """The start time of a motion in seconds as a tensor, or ``None`` where there is none."""
    if start is None:
        return None
    time = take_seconds("start_time of a motion", start, position)
    batch = position.shape[:-2]
    if not _fits(time.shape, batch):
        raise ArgumentError(
            "The start_time of a motion does not fit its batch.",
            given=f"start_time of shape {tuple(time.shape)} for a batch {tuple(batch)}",
            expected="a number, or one for each trajectory",
        )
    _check_values("start_time", time, -math.inf, "finite seconds")
    return time


def _fits(shape: Sequence[int], batch: Sequence[int]) -> bool:
    pairs = zip(reversed(shape), reversed(batch), strict=False)
    return len(shape) <= len(batch) and all(have in (1, want) for have, want in pairs)


def _check_values(name: str, seconds: Tensor, above: float, expected: str) -> None:
    # Elsewhere than on the CPU each construction would wait for the device.
    values = concrete(seconds) if seconds.device.type == "cpu" else None
    if values is None or not values.numel():
        return
    least, most = map(float, values.aminmax())
    if not above < least <= most < math.inf:
        raise ArgumentError(
            f"The {name} of a motion is out of range.",
            given=f"from {least:.6g} to {most:.6g} s",
            expected=expected,
        )
