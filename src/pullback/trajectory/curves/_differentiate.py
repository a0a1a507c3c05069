"""`differentiate`: positions to velocity, acceleration and jerk at every sample."""

import math
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal.kernels._backend import Backend, choose_backend, keep_results
from pullback.trajectory._checks import check_choice, check_device, check_floating, wide_dtype
from pullback.trajectory._motion import Motion, make_motion
from pullback.trajectory._seconds import check_step, check_steps, step_rows
from pullback.trajectory._state import PARTS, State, check_is_state, free, spread_part
from pullback.trajectory.kernels._dispatch import kernels_word, move_lines
from pullback.trajectory.kernels.stencil._weights import (
    SCHEMES,
    Layout,
    Scheme,
    nonuniform_table,
    uniform_table,
)

__all__ = ["differentiate"]


def differentiate(
    position: Tensor,
    dt: Tensor | float,
    *,
    start: State | None = None,
    goal: State | None = None,
    start_index: Tensor | None = None,
    scheme: Scheme = "central",
    reference: Tensor | float | None = None,
    backend: Backend = "auto",
) -> Motion:
    """Return velocity, acceleration and jerk of sampled positions.

    A derivative of order k is that of the polynomial through the nearest samples and whatever is
    known at the end. ``"central"`` looks both ways: velocity is exact on parabolas, acceleration
    on cubics, jerk on quartics, errors fall as dt squared. ``"backward"`` looks at the past only:
    exact on lines, parabolas and cubics, errors fall as dt. Both hold for unequal steps and at the
    ends. Values given by ``start`` hold at sample 0 and those of ``goal`` at the last sample,
    all at the same instant; a position given there replaces the sample.

    Every output is differentiable with respect to positions, boundary values and dt, to any
    order, in either mode; memory is read once and written once each way.

    Arguments:
        position: ``[..., horizon, dof]``, float32, float64, or bfloat16 or float16, which are
            computed in float32. The horizon is at least 5 (central) or 4 (backward).
        dt: seconds between samples: a number, a 0-dimensional tensor, ``[horizon - 1]``, or
            ``[..., horizon - 1]`` for steps of each trajectory.
        start: what is known at sample 0; each part a number, ``[dof]`` or ``[..., dof]``.
        goal: what is known at the last sample.
        start_index: ``[...]`` int32 or int64; the parts of ``start`` are then tables
            ``[states, dof]`` and each trajectory takes a row. Gradients of shared rows add up.
        scheme: ``"central"`` or ``"backward"``.
        reference: a number, ``[dof]`` or ``[..., dof]`` that ``position`` is measured from, so
            that small motions far from zero keep their digits; positions in ``start``, ``goal``
            and the result are absolute.
        backend: ``"auto"``, ``"reference"``, ``"cpu"`` or ``"triton"``; see `backend_used`.

    Raises:
        ArgumentError: a dt that is not positive, finite and of the right length and device, a
            horizon that is too short, boundary values or an index that do not fit.
        ArgumentTypeError: a dtype or type that cannot be used.
        MissingExtraError: the backend asked for is not installed.
        UnsupportedError: the backend asked for does not run on this device.

    Example:
        >>> import torch
        >>> from pullback.trajectory import differentiate, rest
        >>> time = torch.arange(6, dtype=torch.float64)[:, None] / 4
        >>> motion = differentiate(time**2, 0.25, start=rest)
        >>> motion.velocity.flatten().tolist()
        [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
        >>> differentiate(time**2, 0.25).acceleration.flatten().tolist()
        [2.0, 2.0, 2.0, 2.0, 2.0, 2.0]

    The maths: Fornberg, "Generation of finite difference formulas on arbitrarily spaced grids",
    Mathematics of Computation 51 (1988).
    """
    start, goal = free if start is None else start, free if goal is None else goal
    check_floating("position", position, "[..., horizon, dof]", 2)
    check_choice("scheme", scheme, SCHEMES)
    check_is_state("start", start)
    check_is_state("goal", goal)
    *batch, horizon, dof = position.shape
    device = position.device
    if type(dt) is not float:
        dt = check_steps("dt", dt, position, horizon - 1, power=-3)
    if type(backend) is not str:
        choose_backend(device, backend)  # which refuses it: what is kept is found by a word
    seconds = None if isinstance(dt, Tensor) else dt
    known = _orders(start), _orders(goal)
    plan = _plan(scheme, known, backend, (device, position.dtype), seconds)
    layout, width, word, dtype, weights = plan
    if horizon < width:
        raise _too_short(horizon, width, scheme)
    if start_index is not None:
        _check_index(start_index, start, position)
    offset = None if reference is None else spread_part("reference", reference, position)
    if layout.start or layout.goal:
        values = _collect(position, start, goal, start_index, offset)
    else:
        values = position.new_empty(math.prod(batch), 0, dof)
    if isinstance(dt, Tensor):
        check_device("dt", dt, position, "samples")
        table = nonuniform_table(layout, step_rows(dt, position), dtype) if dt.ndim else None
        weights = uniform_table(layout, dt, device, dtype) if table is None else table
    sampled, velocity, acceleration, jerk = move_lines(weights, word, position, values)
    if offset is not None:
        sampled = sampled + offset[..., None, :]
    steps = dt if isinstance(dt, Tensor) else torch.scalar_tensor(dt, dtype=dtype, device=device)
    return make_motion(sampled, velocity, acceleration, jerk, steps)


@keep_results
def _plan(
    scheme: Scheme,
    known: tuple[tuple[int, ...], tuple[int, ...]],
    backend: Backend,
    samples: tuple[torch.device, torch.dtype],
    seconds: float | None,
) -> tuple[Layout, int, str, torch.dtype, Any]:
    """What calls share whose arguments differ in values alone; weights for a number of seconds."""
    device, dtype = samples[0], wide_dtype(samples[1])
    layout = Layout(scheme, *known)
    word = kernels_word("stencil", choose_backend(device, backend), layout.geometry)
    weights = None
    if seconds is not None:
        check_step("dt", seconds, dtype, -3)
        weights = uniform_table(layout, seconds, device, dtype)
    return layout, layout.geometry.width, word, dtype, weights


def _orders(state: State) -> tuple[int, ...]:
    return tuple(map(PARTS.index, state.given))


def _too_short(horizon: int, width: int, scheme: Scheme) -> ArgumentError:
    return ArgumentError(
        f"The horizon is too short for the scheme {scheme!r}.",
        given=f"{horizon} samples",
        expected=f"at least {width} samples",
        mend="Add samples, or use scheme='backward', which needs 4."
        if width - horizon == 1 and scheme == "central"
        else "Add samples.",
    )


def _collect(
    position: Tensor, start: State, goal: State, index: Tensor | None, offset: Tensor | None
) -> Tensor:
    """Stack the boundary values that are given, ``[batch, conditions, dof]``, start first."""
    count, dof = math.prod(position.shape[:-2]), position.shape[-1]
    values = []
    for end, state in (("start", start), ("goal", goal)):
        rows = index if end == "start" else None
        for name in state.given:
            value = spread_part(f"{name} of the {end}", getattr(state, name), position, rows)
            if name == "position" and offset is not None:
                value = value - offset
            values.append(value.reshape(count, dof))
    return torch.stack(values, 1)


def _check_index(index: Any, state: State, samples: Tensor) -> None:
    """Refuse an index that does not choose one state of a start for each trajectory."""
    batch, device = samples.shape[:-2], samples.device
    if not isinstance(index, Tensor) or index.dtype not in (torch.int32, torch.int64):
        given = str(index.dtype) if isinstance(index, Tensor) else type(index).__name__
        raise ArgumentTypeError(
            "start_index is not a tensor of integers of 32 or 64 bits.",
            given=given,
            expected="int32 or int64",
        )
    if index.shape != batch or index.device != device:
        raise ArgumentError(
            "start_index does not fit the trajectories.",
            given=f"shape {tuple(index.shape)} on {index.device}",
            expected=f"shape {tuple(batch)} on {device}, one start for each trajectory",
        )
    if not state.given:
        raise ArgumentError(
            "start_index chooses among the states of a start, and none is given.",
            given="start_index without start",
            expected="start=State(position=table, ...) beside it",
        )
