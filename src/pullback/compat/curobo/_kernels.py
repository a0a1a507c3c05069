"""The Functions: positions or accelerations of a batch to the whole motion."""

from typing import Any

import torch
from torch import Tensor

from pullback.compat.curobo._steps import Four, jit_tensor_step_pos_clique, write
from pullback.errors import ArgumentError
from pullback.trajectory import State, integrate

__all__ = [
    "AccelerationTensorStepIdxKernel",
    "AccelerationTensorStepKernel",
    "CliqueTensorStep",
    "CliqueTensorStepCentralDifferenceKernel",
    "CliqueTensorStepCoalesceKernel",
    "CliqueTensorStepIdxCentralDifferenceKernel",
    "CliqueTensorStepIdxKernel",
    "CliqueTensorStepKernel",
]


def _check(u_act: Tensor, starts: tuple[Tensor, ...], traj_dt: Tensor, least: int) -> None:
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


def _gather(start: Tensor, start_idx: Tensor) -> Tensor:
    index = start_idx.flatten().long()
    if not torch.compiler.is_compiling() and index.numel() > 0:
        least, most = int(index.min()), int(index.max())
        if least < 0 or most >= start.shape[0]:
            raise ArgumentError(
                "start_idx is out of range.",
                given=f"indices from {least} to {most}",
                expected=f"0 to {start.shape[0] - 1}",
            )
    return start.index_select(0, index)


def _before(starts: tuple[Tensor, ...], dt: Tensor, samples: int) -> Tensor:
    """Samples before the start, on its parabola, ``[batch, samples, dof]``, oldest first."""
    position, velocity, acceleration = starts
    past = [
        position - back * dt * velocity + 0.5 * (back * dt) ** 2 * acceleration
        for back in range(samples, 0, -1)
    ]
    return torch.stack(past, dim=1)


def _backward_difference(u_act: Tensor, starts: tuple[Tensor, ...], traj_dt: Tensor) -> Four:
    """u_act[horizon - 1] is not used; sample 0 is the start."""
    _check(u_act, starts, traj_dt, 1)
    rate = traj_dt.flatten()[0]
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


def _central_difference(u_act: Tensor, starts: tuple[Tensor, ...], traj_dt: Tensor) -> Four:
    """N actions give N + 4 samples; sample h is centred on the one before it."""
    _check(u_act, starts, traj_dt, 1)
    rate = traj_dt.flatten()[0]
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


def _acceleration(u_act: Tensor, starts: tuple[Tensor, ...], traj_dt: Tensor, method: Any) -> Four:
    """u_act[horizon - 1] is not used; sample 0 is the start."""
    _check(u_act, starts, traj_dt, 2)
    position, velocity, acceleration = starts
    steps = u_act.shape[1] - 1
    dt = traj_dt.flatten()
    dt = dt.expand(steps) if dt.numel() == 1 else dt[1 : steps + 1]
    start = State(position, velocity)
    motion = integrate(u_act[:, :-1], dt, start=start, method=method)
    accelerations = torch.cat([acceleration[:, None], u_act[:, :-1]], dim=1)
    jerk = accelerations.diff(dim=1) / dt[:, None]
    still = torch.zeros_like(jerk[:, :1])
    return motion.position, motion.velocity, accelerations, torch.cat([still, jerk], dim=1)


def _deliver(values: Four, buffers: tuple[Tensor | None, ...]) -> Four:
    for buffer, value in zip(buffers, values, strict=True):
        write(buffer, value)
    return values


class CliqueTensorStep:
    """Positions and their differences by dense matrices, the start gradient included."""

    @staticmethod
    def apply(
        u_act: Tensor,
        start_position: Tensor,
        mask: Tensor,
        n_mask: Tensor,
        fd_1: Tensor,
        fd_2: Tensor,
        fd_3: Tensor,
    ) -> Four:
        """As `jit_tensor_step_pos_clique`."""
        return jit_tensor_step_pos_clique(u_act, start_position, mask, n_mask, fd_1, fd_2, fd_3)


class CliqueTensorStepKernel:
    """Backward differences of positions; ``traj_dt[0]`` is 1/dt.

    Example:
        >>> import torch
        >>> from pullback.compat.curobo import CliqueTensorStepKernel
        >>> u = torch.tensor([0.25, 1.0, 2.25, 4.0]).view(1, 4, 1)
        >>> zero, out = torch.zeros(1, 1), torch.zeros(1, 4, 1)
        >>> rate = torch.tensor([2.0])
        >>> p, v, a, j = CliqueTensorStepKernel.apply(
        ...     u, zero, zero, zero + 2, out, None, None, None, rate, None)
        >>> out.flatten(), a.flatten()
        (tensor([0.0000, 0.2500, 1.0000, 2.2500]), tensor([2., 2., 2., 2.]))
    """

    @staticmethod
    def apply(
        u_act: Tensor,
        start_position: Tensor,
        start_velocity: Tensor,
        start_acceleration: Tensor,
        out_position: Tensor | None,
        out_velocity: Tensor | None,
        out_acceleration: Tensor | None,
        out_jerk: Tensor | None,
        traj_dt: Tensor,
        out_grad_position: Tensor | None,
    ) -> Four:
        """Return position, velocity, acceleration and jerk, ``[batch, horizon, dof]``.

        Arguments:
            u_act: ``[batch, horizon, dof]`` positions; the last is not used.
            start_position: ``[batch, dof]``, at sample 0.
            start_velocity: the same.
            start_acceleration: the same.
            out_position: filled with the positions, or ``None``.
            out_velocity: the same for velocities.
            out_acceleration: the same for accelerations.
            out_jerk: the same for jerks.
            traj_dt: its first element is 1/dt, in 1/seconds.
            out_grad_position: not used; gradients are fresh tensors.
        """
        starts = (start_position, start_velocity, start_acceleration)
        buffers = (out_position, out_velocity, out_acceleration, out_jerk)
        return _deliver(_backward_difference(u_act, starts, traj_dt), buffers)


class CliqueTensorStepCoalesceKernel(CliqueTensorStepKernel):
    """The same numbers; there, another order in memory."""


class CliqueTensorStepIdxKernel:
    """Backward differences; each trajectory takes a row of the start values."""

    @staticmethod
    def apply(
        u_act: Tensor,
        start_position: Tensor,
        start_velocity: Tensor,
        start_acceleration: Tensor,
        start_idx: Tensor,
        out_position: Tensor | None,
        out_velocity: Tensor | None,
        out_acceleration: Tensor | None,
        out_jerk: Tensor | None,
        traj_dt: Tensor,
        out_grad_position: Tensor | None,
    ) -> Four:
        """As `CliqueTensorStepKernel`, with starts ``[states, dof]`` and ``start_idx [batch]``."""
        starts = (start_position, start_velocity, start_acceleration)
        starts = tuple(_gather(start, start_idx) for start in starts)
        buffers = (out_position, out_velocity, out_acceleration, out_jerk)
        return _deliver(_backward_difference(u_act, starts, traj_dt), buffers)


class CliqueTensorStepCentralDifferenceKernel:
    """Central differences of fourth order; N actions give N + 4 samples."""

    @staticmethod
    def apply(
        u_act: Tensor,
        start_position: Tensor,
        start_velocity: Tensor,
        start_acceleration: Tensor,
        out_position: Tensor | None,
        out_velocity: Tensor | None,
        out_acceleration: Tensor | None,
        out_jerk: Tensor | None,
        traj_dt: Tensor,
        out_grad_position: Tensor | None,
    ) -> Four:
        """Return position, velocity, acceleration and jerk, ``[batch, N + 4, dof]``.

        Sample 0 lies one step before the start, sample 1 is the start, and the last action is
        held for four samples more. Arguments as in `CliqueTensorStepKernel`.
        """
        starts = (start_position, start_velocity, start_acceleration)
        buffers = (out_position, out_velocity, out_acceleration, out_jerk)
        return _deliver(_central_difference(u_act, starts, traj_dt), buffers)


class CliqueTensorStepIdxCentralDifferenceKernel:
    """Central differences; each trajectory takes a row of the start values."""

    @staticmethod
    def apply(
        u_act: Tensor,
        start_position: Tensor,
        start_velocity: Tensor,
        start_acceleration: Tensor,
        start_idx: Tensor,
        out_position: Tensor | None,
        out_velocity: Tensor | None,
        out_acceleration: Tensor | None,
        out_jerk: Tensor | None,
        traj_dt: Tensor,
        out_grad_position: Tensor | None,
    ) -> Four:
        """As `CliqueTensorStepCentralDifferenceKernel`, with ``start_idx [batch]``."""
        starts = (start_position, start_velocity, start_acceleration)
        starts = tuple(_gather(start, start_idx) for start in starts)
        buffers = (out_position, out_velocity, out_acceleration, out_jerk)
        return _deliver(_central_difference(u_act, starts, traj_dt), buffers)


class AccelerationTensorStepKernel:
    """Accelerations, held over each step and integrated exactly; ``traj_dt`` in seconds."""

    @staticmethod
    def apply(
        u_act: Tensor,
        start_position: Tensor,
        start_velocity: Tensor,
        start_acceleration: Tensor,
        out_position: Tensor | None,
        out_velocity: Tensor | None,
        out_acceleration: Tensor | None,
        out_jerk: Tensor | None,
        traj_dt: Tensor,
        out_grad_position: Tensor | None,
    ) -> Four:
        """Return position, velocity, acceleration and jerk, ``[batch, horizon, dof]``.

        ``traj_dt`` is one value or ``[horizon]`` of which the first is not used; the other
        arguments are as in `CliqueTensorStepKernel`, ``u_act`` being accelerations.
        """
        starts = (start_position, start_velocity, start_acceleration)
        buffers = (out_position, out_velocity, out_acceleration, out_jerk)
        return _deliver(_acceleration(u_act, starts, traj_dt, "exact"), buffers)


class AccelerationTensorStepIdxKernel:
    """Accelerations by semi-implicit Euler; each trajectory takes a row of the start values."""

    @staticmethod
    def apply(
        u_act: Tensor,
        start_position: Tensor,
        start_velocity: Tensor,
        start_acceleration: Tensor,
        start_idx: Tensor,
        out_position: Tensor | None,
        out_velocity: Tensor | None,
        out_acceleration: Tensor | None,
        out_jerk: Tensor | None,
        traj_dt: Tensor,
        out_grad_position: Tensor | None,
    ) -> Four:
        """As `AccelerationTensorStepKernel`, with ``start_idx [batch]``."""
        starts = (start_position, start_velocity, start_acceleration)
        starts = tuple(_gather(start, start_idx) for start in starts)
        buffers = (out_position, out_velocity, out_acceleration, out_jerk)
        method = "semi_implicit_euler"
        return _deliver(_acceleration(u_act, starts, traj_dt, method), buffers)
