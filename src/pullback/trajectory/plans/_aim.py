"""The range to solve for: as given, less what rounding may take at its ends."""

import math

import torch
from torch import Tensor

from pullback.trajectory._limits import Limits, range_of
from pullback.trajectory.plans._plan import Plan

__all__ = ["aim_of"]

# Of an end, for what rounding leaves of rows that are met: up to 3e-13 at 256 samples, 4e-12 at
# 1,024 and 1e-9 at 2,048.
_SPARES = ((512, 1e-12), (1024, 1e-11), (math.inf, 1e-8))
# Of an end, for what float32 rounds where motions are returned in it, and at most so much of half
# the width. Positions have no such part: they are as near to zero as their origin happens to be.
_ROUNDING = 2e-7
_MOST = 1e-3


def aim_of(
    plan: Plan, limits: Limits, kind: str, spare: float | None = None
) -> tuple[Tensor, Tensor]:
    """The ends to solve for, ``[..., dof]``; those of a position are relative to the first point.

    A range loses a part of each end at it, ``spare``, or of half its width where that is less.
    """
    lower, upper = range_of(limits, kind, plan.points)
    if kind == "position":
        origin = plan.origin.squeeze(-2)
        lower, upper = lower - origin, upper - origin
    if spare is None:
        spare = next(part for most, part in _SPARES if plan.samples <= most)
    half = (upper - lower) / 2
    own = 64 * torch.finfo(torch.float64).eps * torch.minimum(lower.abs(), upper.abs())
    below, above = (own + spare * torch.minimum(half, end.abs()) for end in (lower, upper))
    if kind != "position" and plan.dtype != torch.float64:
        below, above = (
            part + torch.minimum(_ROUNDING * end.abs(), _MOST * half)
            for part, end in ((below, lower), (above, upper))
        )
    return lower + below, upper - above
