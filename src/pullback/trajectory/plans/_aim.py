"""The range to solve for: as given, less what rounding may take at its ends."""

import torch
from torch import Tensor

from pullback.trajectory.plans._limits import Limits, range_of
from pullback.trajectory.plans._plan import Plan

__all__ = ["aim_of"]

# Of half the width. Without it float64 exceeds ranges by up to 2.5e-15 of that, at 40 to 1,024
# samples.
_SPARE = 64 * torch.finfo(torch.float64).eps
# Of an end, for what float32 rounds where motions are returned in it, and at most so much of half
# the width. Positions have no such part: they are as near to zero as their origin happens to be.
_ROUNDING = 2e-7
_MOST = 1e-3


def aim_of(plan: Plan, limits: Limits, kind: str, spare: float = _SPARE) -> tuple[Tensor, Tensor]:
    """The ends to solve for, ``[..., dof]``; those of a position are relative to the first point.

    A range loses a part of half its width at both ends, ``spare``.
    """
    lower, upper = range_of(limits, kind, plan.points)
    if kind == "position":
        origin = plan.origin.squeeze(-2)
        lower, upper = lower - origin, upper - origin
    half = (upper - lower) / 2
    below = above = spare * half
    if kind != "position" and plan.dtype != torch.float64:
        below, above = (
            below + torch.minimum(_ROUNDING * end.abs(), _MOST * half) for end in (lower, upper)
        )
    return lower + below, upper - above
