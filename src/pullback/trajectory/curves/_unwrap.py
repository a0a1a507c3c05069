"""`unwrap`: angles of joints that turn without end, without their jumps."""

import math

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory._checks import check_floating, is_number, plain

__all__ = ["unwrap"]


def unwrap(
    position: Tensor, *, period: float = 2 * math.pi, joints: list[int] | None = None
) -> Tensor:
    r"""Samples or points of joints that turn without end, each the shorter way from the last.

    .. math:: x_i = q_i - P \sum_{k \le i} \mathrm{round}\big((q_k - q_{k-1}) / P\big)

    An angle that is measured modulo the period jumps where it passes the end of its range, and a
    derivative of a jump means nothing. So unwrap samples before `differentiate`, and points before
    `minimum_jerk` or `quintic`, which then go the shorter way. The gradient is one.

    Arguments:
        position: ``[..., samples, dof]``.
        period: of a turn, in the unit of the joint.
        joints: which joints turn without end; all if left out.

    Returns:
        the same shape and dtype; the first sample stays.

    Raises:
        ArgumentError: a period that is not positive, a joint that there is not.
        ArgumentTypeError: not a floating tensor ``[..., samples, dof]``, or joints in no list.

    Example:
        >>> import torch
        >>> from pullback.trajectory import unwrap
        >>> angles = torch.tensor([[170.0], [179.0], [-172.0], [-163.0]])
        >>> unwrap(angles, period=360.0).flatten().tolist()
        [170.0, 179.0, 188.0, 197.0]
    """
    check_floating("position", position, "[..., samples, dof]", 2)
    period, joints = plain(period), plain(joints)
    if not (is_number(period) and 0 < period < math.inf):
        raise ArgumentError("The period must be positive.", given=repr(period))
    dof = position.shape[-1]
    if joints is not None and not isinstance(joints, (list, tuple, range)):
        raise ArgumentTypeError("The joints are not a list.", given=repr(joints), expected="[0, 2]")
    chosen = range(dof) if joints is None else joints
    if not all(type(joint) is int and 0 <= joint < dof for joint in chosen):
        raise ArgumentError(
            "There is no such joint.", given=repr(joints), expected=f"numbers from 0 to {dof - 1}"
        )
    turning = [joint in chosen for joint in range(dof)]
    # Under Dynamo the type of a list of truths is not found.
    turning = torch.tensor(turning, dtype=torch.bool, device=position.device)
    jumps = (position.detach().diff(dim=-2) / period).round().cumsum(-2)
    # Chosen, not multiplied by zero: a joint that does not turn may hold what is not finite.
    turns = torch.nn.functional.pad(torch.where(turning, jumps, 0.0), (0, 0, 1, 0))
    return position - period * turns
