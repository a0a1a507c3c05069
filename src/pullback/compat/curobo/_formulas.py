"""What the Functions compute: whole motions from positions or accelerations.

Actions are ``[batch, horizon, dof]``, the starts position, velocity and acceleration, each
``[batch, dof]``. Of ``traj_dt`` positions take the first element, 1/dt; accelerations take seconds,
one value or ``[horizon]`` of which the first is not used.
"""

from typing import Literal

import torch
from torch import Tensor

from pullback.compat.curobo._steps import Four
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory import State, integrate
from pullback.trajectory._knots import concrete

__all__ = [
    "Method",
    "backward_difference",
    "central_difference",
    "gather",
    "hold_accelerations",
    "step_times",
]

Method = Literal["exact", "semi_implicit_euler"]

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_STARTS = ("start_position", "start_velocity", "start_acceleration")


def _check(
    u_act: Tensor, starts: tuple[Tensor, Tensor, Tensor], traj_dt: Tensor, least: int
) -> None:
    _check_tensors(u_act=u_act, traj_dt=traj_dt)
    _check_tensors(**dict(zip(_STARTS, starts, strict=True)))
    if u_act.ndim != 3 or u_act.shape[1] < least:
        raise ArgumentError(
            "The actions cannot be used.",
            given=f"shape {tuple(u_act.shape)}",
            expected=f"[batch, horizon, dof] with {least} actions or more",
        )
    wanted = (u_act.shape[0], u_act.shape[2])
    for start in starts:
        if start.shape != wanted:
            raise ArgumentError(
                "A start value does not fit the actions.",
                given=f"shape {tuple(start.shape)}",
                expected=f"{wanted}: one row for each trajectory",
            )
    if traj_dt.numel() < 1:
        raise ArgumentError("traj_dt is empty.", expected="at least one value")


def _check_tensors(**given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise ArgumentTypeError(
                f"{name} is not a tensor.", given=type(value).__name__, expected="a tensor"
            )


def gather(start: Tensor, start_idx: Tensor) -> Tensor:
    """The rows ``start_idx [batch]`` of a table ``[states, dof]``.

    Raises:
        ArgumentError: an index is out of range, or the table has other dimensions.
        ArgumentTypeError: one of them is not a tensor, or the indices are no integers.
    """
    _check_tensors(start_value=start, start_idx=start_idx)
    if start.ndim != 2:
        raise ArgumentError(
            "A table of start values has other dimensions.",
            given=f"shape {tuple(start.shape)}",
            expected="[states, dof]",
        )
    if start_idx.dtype not in _INTEGERS:
        raise ArgumentTypeError(
            "start_idx is not a tensor of integers.",
            given=str(start_idx.dtype),
            expected="int32 or int64",
        )
    index = start_idx.flatten().long()
    known = concrete(index)
    if known is not None and known.numel() > 0:
        least, most = int(known.min()), int(known.max())
        if least < 0 or most >= start.shape[0]:
            raise ArgumentError(
                "start_idx is out of range.",
                given=f"indices from {least} to {most}",
                expected=f"0 to {start.shape[0] - 1}",
            )
    return start.index_select(0, index)


def _rate(traj_dt: Tensor) -> Tensor:
    """The first element of ``traj_dt``, 1/dt."""
    rate = traj_dt.flatten()[0]
    known = concrete(rate)
    if known is not None and not bool(
        ((known > 0) & torch.isfinite(known) & torch.isfinite(1 / known)).all()
    ):
        raise ArgumentError(
            "traj_dt is no rate of samples.",
            given=f"traj_dt[0] = {known.flatten().tolist()[:4]}",
            expected="1/dt > 0, in 1/seconds, finite as dt is",
        )
    return rate


def _before(starts: tuple[Tensor, Tensor, Tensor], dt: Tensor, samples: int) -> Tensor:
    """Samples before the start, on its parabola, ``[batch, samples, dof]``, oldest first."""
    position, velocity, acceleration = starts
    past = [
        position - back * dt * velocity + 0.5 * (back * dt) ** 2 * acceleration
        for back in range(samples, 0, -1)
    ]
    return torch.stack(past, dim=1)


def backward_difference(
    u_act: Tensor, starts: tuple[Tensor, Tensor, Tensor], traj_dt: Tensor
) -> Four:
    """Positions to their motion; sample 0 is the start, and ``u_act[horizon - 1]`` is not used."""
    _check(u_act, starts, traj_dt, 1)
    rate = _rate(traj_dt)
    position, velocity, acceleration = starts
    line = torch.cat([_before(starts, 1 / rate, 2), position[:, None], u_act[:, :-1]], dim=1)
    first = line.diff(dim=1)
    second = first.diff(dim=1)
    third = second.diff(dim=1)
    return (
        line[:, 2:],
        torch.cat([velocity[:, None], first[:, 2:] * rate], dim=1),
        torch.cat([acceleration[:, None], second[:, 1:] * rate**2], dim=1),
        torch.cat([torch.zeros_like(position[:, None]), third * rate**3], dim=1),
    )


def central_difference(
    u_act: Tensor, starts: tuple[Tensor, Tensor, Tensor], traj_dt: Tensor
) -> Four:
    """Positions to their motion; N actions give N + 4 samples, each centred on the one before."""
    _check(u_act, starts, traj_dt, 1)
    rate = _rate(traj_dt)
    held = u_act[:, -1:].expand(-1, 4, -1)
    line = torch.cat([_before(starts, 1 / rate, 3), starts[0][:, None], u_act, held], dim=1)
    here = line[:, 2:-2]
    # Relative to the centre: the weights of each derivative sum to zero.
    far, near = line[:, :-4] - here, line[:, 1:-3] - here
    next_, last = line[:, 3:-1] - here, line[:, 4:] - here
    velocity = ((far - last) + 8 * (next_ - near)) / 12 * rate
    acceleration = (16 * (near + next_) - (far + last)) / 12 * rate**2
    jerk = ((last - far) / 2 + (near - next_)) * rate**3
    return here, velocity, acceleration, jerk


def hold_accelerations(
    u_act: Tensor, starts: tuple[Tensor, Tensor, Tensor], traj_dt: Tensor, method: Method
) -> Four:
    """Accelerations to their motion; sample 0 is the start, ``u_act[horizon - 1]`` is not used."""
    _check(u_act, starts, traj_dt, 2)
    position, velocity, acceleration = starts
    dt = step_times(u_act, traj_dt)
    start = State(position, velocity)
    motion = integrate(u_act[:, :-1], dt, start=start, method=method)
    accelerations = torch.cat([acceleration[:, None], u_act[:, :-1]], dim=1)
    # A tensor of steps would make jerk alone of their dtype.
    jerk = accelerations.diff(dim=1) / dt[:, None].to(accelerations.dtype)
    still = torch.zeros_like(jerk[:, :1])
    return motion.position, motion.velocity, accelerations, torch.cat([still, jerk], dim=1)


def step_times(u_act: Tensor, traj_dt: Tensor) -> Tensor:
    """The seconds of each step between samples, ``[horizon - 1]``."""
    steps, dt = u_act.shape[1] - 1, traj_dt.flatten()
    return dt.expand(steps) if dt.numel() == 1 else dt[1 : steps + 1]
