"""The transposes of what the Functions compute, and the gradients of their steps.

By hand, since ``torch.func.vjp`` of the formulas would compute all of them again: forward and
backward of 64 x 32 x 7 took 2.4 ms in place of 0.8 for positions, 5.1 in place of 1.2 for
accelerations. Shapes are those of the formulas; the cotangents are of position, velocity,
acceleration and jerk.
"""

import torch
from torch import Tensor

from pullback.compat.curobo._formulas import (
    Method,
    backward_difference,
    central_difference,
    hold_accelerations,
    step_times,
)
from pullback.compat.curobo._steps import Four

__all__ = ["pull_accelerations", "pull_backward_difference", "pull_central_difference"]

Starts = tuple[Tensor, Tensor, Tensor]
# Of actions, start position, velocity and acceleration, and of the steps.
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
Needs = tuple[bool, bool, bool, bool, bool]


def pull_backward_difference(
    u_act: Tensor, starts: Starts, traj_dt: Tensor, cotangents: Four, needs: Needs
) -> Gradients:
    """The gradients of `backward_difference`, from the differences of highest order down."""
    rate = traj_dt.flatten()[0]
    of_p, of_v, of_a, of_j = cotangents
    second = _undo_diff(of_j[:, 1:] * rate**3) + _pad(of_a[:, 1:] * rate**2, 1, 0)
    first = _undo_diff(second) + _pad(of_v[:, 1:] * rate, 2, 0)
    line = _undo_diff(first) + _pad(of_p, 2, 0)
    of_rate = None
    if needs[4]:
        values = backward_difference(u_act, starts, traj_dt)
        # Sample 0 is given, so that its derivatives do not depend on the rate.
        inner = [part[:, 1:] for part in cotangents]
        of_rate = _of_rate(inner, [part[:, 1:] for part in values], rate)
        of_rate = _first_only(of_rate + _rate_of_past(line[:, :2], starts, rate), traj_dt)
    ago = _ago(line[:, :2]) / rate
    return (
        _pad(line[:, 3:], 0, 1) if needs[0] else None,
        line[:, :3].sum(1) if needs[1] else None,
        of_v[:, 0] - (ago * line[:, :2]).sum(1) if needs[2] else None,
        of_a[:, 0] + (0.5 * ago**2 * line[:, :2]).sum(1) if needs[3] else None,
        of_rate,
    )


def pull_central_difference(
    u_act: Tensor, starts: Starts, traj_dt: Tensor, cotangents: Four, needs: Needs
) -> Gradients:
    """The gradients of `central_difference`."""
    rate, actions = traj_dt.flatten()[0], u_act.shape[1]
    of_p, of_v, of_a, of_j = cotangents
    slow, bent, sharp = of_v * rate / 12, of_a * rate**2 / 12, of_j * rate**3
    line = (
        _pad(slow - bent - sharp / 2, 0, 4)
        + _pad(16 * bent - 8 * slow + sharp, 1, 3)
        + _pad(of_p - 30 * bent, 2, 2)
        + _pad(16 * bent + 8 * slow - sharp, 3, 1)
        + _pad(sharp / 2 - slow - bent, 4, 0)
    )
    of_act = of_rate = None
    if needs[0]:
        # The last action is held for four samples more.
        held = line[:, actions + 3 :].sum(1, keepdim=True)
        of_act = torch.cat([line[:, 4 : actions + 3], held], dim=1)
    if needs[4]:
        values = central_difference(u_act, starts, traj_dt)
        of_rate = _of_rate(cotangents, values, rate)
        of_rate = _first_only(of_rate + _rate_of_past(line[:, :3], starts, rate), traj_dt)
    ago = _ago(line[:, :3]) / rate
    return (
        of_act,
        line[:, :4].sum(1) if needs[1] else None,
        -(ago * line[:, :3]).sum(1) if needs[2] else None,
        (0.5 * ago**2 * line[:, :3]).sum(1) if needs[3] else None,
        of_rate,
    )


def pull_accelerations(
    u_act: Tensor,
    starts: Starts,
    traj_dt: Tensor,
    cotangents: Four,
    needs: Needs,
    *,
    method: Method,
) -> Gradients:
    """The gradients of `hold_accelerations`: the states below are sums, so these sum backwards."""
    dt = step_times(u_act, traj_dt)[:, None]
    # A step adds dt v + weight dt^2 a to the position, with the velocity before it.
    weight = 0.5 if method == "exact" else 1.0
    of_p, of_v, of_a, of_j = cotangents
    later_p = _sum_from_here(of_p)
    later_v = of_held = of_traj_dt = None
    if any((needs[0], *needs[2:])):
        later_v = _sum_from_here(of_v + _pad(later_p[:, 1:] * dt, 0, 1))
    push = of_j[:, 1:] / dt
    if later_v is not None and (needs[0] or needs[3]):
        of_held = of_a + _pad(later_v[:, 1:] * dt + weight * later_p[:, 1:] * dt**2, 1, 0)
        of_held = of_held + _pad(push, 1, 0) - _pad(push, 0, 1)
    if later_v is not None and needs[4]:
        _, velocity, acceleration, jerk = hold_accelerations(u_act, starts, traj_dt, method)
        held = acceleration[:, 1:]
        of_dt = later_v[:, 1:] * held - push * jerk[:, 1:]
        of_dt = of_dt + later_p[:, 1:] * (velocity[:, :-1] + 2 * weight * dt * held)
        of_traj_dt = _of_steps(of_dt.sum((0, 2)), traj_dt)
    return (
        _pad(of_held[:, 1:], 0, 1) if of_held is not None and needs[0] else None,
        later_p[:, 0] if needs[1] else None,
        later_v[:, 0] if later_v is not None and needs[2] else None,
        of_held[:, 0] if of_held is not None and needs[3] else None,
        of_traj_dt,
    )


def _of_steps(steps: Tensor, traj_dt: Tensor) -> Tensor:
    """The gradient of ``traj_dt`` from that of the steps, the transpose of `step_times`."""
    if traj_dt.numel() == 1:
        return steps.sum().reshape(traj_dt.shape)
    after = traj_dt.numel() - len(steps) - 1
    return torch.nn.functional.pad(steps, (1, after)).reshape(traj_dt.shape)


def _pad(part: Tensor, before: int, after: int) -> Tensor:
    return torch.nn.functional.pad(part, (0, 0, before, after))


def _undo_diff(part: Tensor) -> Tensor:
    """The transpose of ``diff`` along the samples."""
    return _pad(part, 1, 0) - _pad(part, 0, 1)


def _sum_from_here(part: Tensor) -> Tensor:
    return part.flip(1).cumsum(1).flip(1)


def _ago(part: Tensor) -> Tensor:
    """How many steps before the start each of the first samples lies, ``[samples, 1]``."""
    return torch.arange(part.shape[1], 0, -1, dtype=part.dtype, device=part.device)[:, None]


def _rate_of_past(part: Tensor, starts: Starts, rate: Tensor) -> Tensor:
    """The gradient of the rate through the parabola before the start."""
    _, velocity, acceleration = starts
    ago = _ago(part)
    moved = ago * (ago / rate * acceleration[:, None] - velocity[:, None])
    return -(part * moved).sum() / rate**2


def _of_rate(cotangents: list[Tensor] | Four, values: list[Tensor] | Four, rate: Tensor) -> Tensor:
    """Of a rate in the first, second and third power."""
    pairs = zip(cotangents[1:], values[1:], strict=True)
    powers = [power * (c * v).sum() for power, (c, v) in enumerate(pairs, start=1)]
    return sum(powers[1:], powers[0]) / rate


def _first_only(gradient: Tensor, like: Tensor) -> Tensor:
    """A gradient of the first element, the others of which are not read."""
    flat = torch.nn.functional.pad(gradient.reshape(1), (0, like.numel() - 1))
    return flat.reshape(like.shape)
