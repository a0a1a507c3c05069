"""What `differentiate` and `integrate` check of their arguments before any kernel runs."""

import math
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory._knots import (
    check_device,
    check_floating,
    concrete,
    from_numbers,
    is_number,
)
from pullback.trajectory._plain import plain
from pullback.trajectory._state import PARTS, State

__all__ = [
    "arithmetic_dtype",
    "check_choice",
    "check_index",
    "check_named_device",
    "check_steps",
    "gather_part",
    "least_step",
]

_RANGES = {
    dtype: (torch.finfo(dtype).tiny, torch.finfo(dtype).max)
    for dtype in (torch.float32, torch.float64)
}
# The weights are at most some hundreds of the inverse cube of a step.
_LEAST_STEPS = {dtype: (1000 / highest) ** (1 / 3) for dtype, (_, highest) in _RANGES.items()}


def arithmetic_dtype(samples: Tensor) -> torch.dtype:
    """Return the dtype to compute in: float64 for float64, float32 for all others."""
    return torch.float64 if samples.dtype == torch.float64 else torch.float32


def check_choice(what: str, given: Any, choices: tuple[str, ...]) -> None:
    """Refuse what is none of some words."""
    if given not in choices:
        raise ArgumentError(
            f"The {what} is unknown.", given=repr(given), expected=f"one of {choices}"
        )


def check_named_device(device: Any) -> None:
    """Refuse what names no device; ``None`` leaves it open."""
    try:
        torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError("There is no such device.", given=repr(device)) from error


def check_steps(dt: Any, samples: Tensor, steps: int, least: float = 0.0) -> Any:
    """Refuse time steps that are not positive seconds of the right shape on the right device.

    Returns them: a number, as one of Python's, or a tensor ``[]``, ``[steps]`` or ``[..., steps]``.
    """
    dtype = arithmetic_dtype(samples)
    dt = plain(dt)
    if is_number(dt):
        lowest, highest = _RANGES[dtype]
        if not max(lowest, least) <= dt <= highest:
            raise _bad_step(f"dt={dt}", dtype, least)
        return dt
    check_floating("dt", dt, "of seconds, or a number")
    check_device("dt", dt, samples, "samples")
    batch = samples.shape[:-2]
    if dt.ndim and tuple(dt.shape) not in ((steps,), (*batch, steps)):
        raise ArgumentError(
            "dt has the wrong length.",
            given=f"dt of shape {tuple(dt.shape)} for samples of shape {tuple(samples.shape)}",
            expected=f"a number, [{steps}] or {[*batch, steps]}",
        )
    values = concrete(dt)
    if values is None:
        return dt
    used = values.to(dtype)  # a step may vanish or overflow where it is used
    kept = (used > 0) & (used >= least) & (used < math.inf)
    if not bool(kept.all()):
        wrong = values[~kept].flatten()
        raise _bad_step(f"dt={wrong[0].item()} among {values.numel()} steps", dtype, least)
    return dt


def least_step(samples: Tensor) -> float:
    """The shortest step whose inverse cube, which jerk is a multiple of, the arithmetic holds."""
    return _LEAST_STEPS[arithmetic_dtype(samples)]


def _bad_step(given: str, dtype: torch.dtype, least: float) -> ArgumentError:
    return ArgumentError(
        "A time step is not a positive, finite number of seconds.",
        given=given,
        expected=f"dt > 0, in seconds, that {dtype} can hold"
        + (f" with its cube: from {least:.2g} s" if least else ""),
    )


def check_index(index: Any, state: State, samples: Tensor) -> None:
    """Refuse an index that does not choose one row of a start's tables for each trajectory.

    The tensors and lists of the start are tables ``[states, dof]``.
    """
    batch, device = samples.shape[:-2], samples.device
    if not isinstance(index, Tensor) or index.dtype not in (torch.int32, torch.int64):
        given = str(index.dtype) if isinstance(index, Tensor) else type(index).__name__
        raise ArgumentTypeError(
            "start_index is not a tensor of integers.", given=given, expected="int32 or int64"
        )
    if index.shape != batch or index.device != device:
        raise ArgumentError(
            "start_index does not fit the trajectories.",
            given=f"shape {tuple(index.shape)} on {index.device}",
            expected=f"shape {tuple(batch)} on {device}, one start for each trajectory",
        )
    parts = {name: getattr(state, name) for name in PARTS}
    tables = [
        part if isinstance(part, Tensor) else from_numbers(f"{name} of the start", part, samples)
        for name, part in parts.items()
        if isinstance(part, (Tensor, tuple))
    ]
    for table in tables:
        if table.ndim != 2:
            raise ArgumentError(
                "With start_index, the parts of start are tables.",
                given=f"shape {tuple(table.shape)}",
                expected="[states, dof]",
            )
    values = concrete(index)
    if values is None or values.numel() == 0:
        return
    least, most = int(values.min()), int(values.max())
    for table in tables:
        if least < 0 or most >= table.shape[0]:
            raise ArgumentError(
                "start_index is out of range.",
                given=f"indices from {least} to {most}",
                expected=f"0 to {table.shape[0] - 1}, for a table of {table.shape[0]} states",
            )


def gather_part(name: str, part: Any, samples: Tensor, index: Tensor | None) -> Tensor:
    """Return one part of a state as ``[*batch, dof]`` in the dtype of the samples.

    It is a number, ``[dof]`` or ``[..., dof]``, or with an index ``[*batch]`` of rows a table
    ``[states, dof]``.
    """
    shape = (*samples.shape[:-2], samples.shape[-1])
    if not isinstance(part, Tensor) and not _is_finite(part):
        raise ArgumentError(f"The {name} is not finite.", given=repr(part))
    if isinstance(part, (int, float)):
        return torch.full(shape, float(part), dtype=samples.dtype, device=samples.device)
    if not isinstance(part, Tensor):
        part = from_numbers(name, part, samples)
    check_device(name, part, samples, "samples")
    if part.dtype != samples.dtype:
        raise ArgumentTypeError(
            f"The {name} has another dtype than the samples.",
            given=f"{part.dtype}, samples {samples.dtype}",
            expected=str(samples.dtype),
        )
    if index is not None:
        part = part.index_select(0, index.flatten()).unflatten(0, index.shape)
    fits = part.ndim <= len(shape) and all(
        have in (1, want) for have, want in zip(part.shape[::-1], shape[::-1], strict=False)
    )
    if not fits or (part.ndim and part.shape[-1] != shape[-1]):
        raise ArgumentError(
            f"The {name} does not fit the trajectories.",
            given=f"shape {tuple(part.shape)}",
            expected=f"[{shape[-1]}] or {list(shape)}: the batch and dof of the samples",
        )
    return part.expand(shape)


def _is_finite(part: Any) -> bool:
    return all(map(_is_finite, part)) if isinstance(part, tuple) else math.isfinite(part)
