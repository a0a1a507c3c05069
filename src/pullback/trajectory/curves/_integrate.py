"""`integrate`: velocity, acceleration or jerk controls to the states below them."""

import math
from typing import Literal

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.kernels._backend import Backend, choose_backend
from pullback.trajectory._checks import check_choice, check_device, check_floating, wide_dtype
from pullback.trajectory._motion import Motion, make_motion
from pullback.trajectory._seconds import check_steps, step_rows
from pullback.trajectory._state import PARTS, State, check_is_state, spread_part
from pullback.trajectory.kernels._dispatch import kernels_word, move_lines
from pullback.trajectory.kernels.accumulate._reference import (
    METHODS,
    Method,
    step_table,
    uniform_table,
)

__all__ = ["Order", "integrate"]

Order = Literal["velocity", "acceleration", "jerk"]


def integrate(
    control: Tensor,
    dt: Tensor | float,
    *,
    start: State,
    order: Order = "acceleration",
    method: Method = "exact",
    backend: Backend = "auto",
) -> Motion:
    """Return the motion that a control drives, each value held over its step of time.

    Sample 0 is the start, sample ``h + 1`` the end of step ``h``: N controls give N + 1 samples.
    The states below the control follow ``method``; the control's own order takes its value at the
    beginning of each step (and at the last sample its last value), and the orders above are zero,
    as they are inside every step.

    Arguments:
        control: ``[..., steps, dof]``, float32, float64, or bfloat16 or float16, which are
            computed in float32.
        dt: seconds for each step: a number, a 0-dimensional tensor, ``[steps]`` or
            ``[..., steps]``.
        start: every state below the control at sample 0, each a number, ``[dof]`` or
            ``[..., dof]``; ``State(position=q, velocity=0.0)`` for accelerations.
        order: what the control is: ``"velocity"``, ``"acceleration"`` or ``"jerk"``.
        method: ``"exact"`` for a control that is constant over each step;
            ``"semi_implicit_euler"``, where each state follows the new value of the one above it;
            or ``"euler"``, where it follows the old one.
        backend: ``"auto"``, ``"reference"``, ``"cpu"`` or ``"triton"``; see `backend_used`.

    Raises:
        ArgumentError: a dt that is not positive, too long for its powers to be held, or not of
            the right length and device, no steps, an unknown order or method, a start that lacks
            a state, holds one that the control decides, or does not fit.
        ArgumentTypeError: a dtype or type that cannot be used.
        MissingExtraError: the backend asked for is not installed.
        UnsupportedError: the backend asked for does not run on this device.

    Example:
        >>> import torch
        >>> from pullback.trajectory import State, integrate
        >>> push = torch.full((4, 1), 2.0, dtype=torch.float64)
        >>> motion = integrate(push, 0.5, start=State(position=0.0, velocity=0.0))
        >>> motion.velocity.flatten().tolist(), motion.position.flatten().tolist()
        ([0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 0.25, 1.0, 2.25, 4.0])

    The maths: the Taylor series of a polynomial; Hairer, Lubich, Wanner, "Geometric Numerical
    Integration" (2006), I.1, for the Euler methods.
    """
    check_floating("control", control, "[..., steps, dof]", 2)
    *batch, steps, dof = control.shape
    check_choice("order of the control", order, PARTS[1:])
    check_choice("method", method, METHODS)
    if steps < 1:
        raise ArgumentError("There is no step to integrate.", given="0 steps", expected="1 or more")
    level = PARTS.index(order)
    check_is_state("start", start)
    _check_start(start, level, order)
    dt = check_steps("dt", dt, control, steps, power=level)
    if isinstance(dt, Tensor):
        check_device("dt", dt, control, "samples")
    chosen = choose_backend(control.device, backend)
    count, dtype = math.prod(batch), wide_dtype(control.dtype)
    parts = [
        spread_part(f"{name} of the start", getattr(start, name), control) for name in PARTS[:level]
    ]
    rows = parts if len(batch) == 1 else [part.reshape(count, dof) for part in parts]
    if isinstance(dt, Tensor):
        table = step_table(method, level, step_rows(dt, control)).to(dtype)
    else:
        table = uniform_table(method, level, dt, control.device, dtype)
    word = kernels_word("accumulate", chosen, (level,))
    position, velocity, acceleration, jerk = move_lines(table, word, control, torch.stack(rows, 1))
    kept = dt if isinstance(dt, Tensor) else torch.full((), dt, dtype=dtype, device=control.device)
    return make_motion(position, velocity, acceleration, jerk, kept)


def _check_start(start: State, level: int, order: str) -> None:
    needed = PARTS[:level]
    missing = [name for name in needed if name not in start.given]
    if missing:
        raise ArgumentError(
            f"The start lacks its {' and '.join(missing)}.",
            given=f"a state with {', '.join(start.given) or 'nothing'}",
            expected=", ".join(needed),
        )
    decided = [name for name in start.given if name not in needed]
    if decided:
        raise ArgumentError(
            f"The start holds {' and '.join(decided)}, which the {order} control decides.",
            expected=f"only {', '.join(needed)}",
        )
