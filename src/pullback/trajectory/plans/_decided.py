"""The rows of a motion that what is given decides: sums of its conditions, whatever else it does.

With position, velocity and acceleration at an end these are its first three coefficients, with the
jerk its fourth, and further ones where points lie near.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pullback.trajectory.kernels.programs._cubic import apply_form
from pullback.trajectory.kernels.programs._problem import ROWS

__all__ = ["AT_END", "Decided", "decide_rows", "rows_within"]

# The velocity at ends that are free, beside the control points within the motion.
AT_END = "end velocity"

# Of the square of a row, what is not a sum of conditions: a point is met on a sample if it is
# a millionth of a step away.
_APART = 1e-12
# A smaller weight is rounding. That of far conditions would be seen beside limits on the jerk.
_ROUNDING = 1e-9


def rows_within(kind: str, samples: int, device: torch.device) -> Tensor:
    """Which rows ``[rows]`` are of the motion: it has no control points outside of it."""
    rows = samples + 3 - len(ROWS[kind])
    within = torch.ones(rows, dtype=torch.bool, device=device)
    if kind == AT_END:
        within[1:-1] = False
    elif rows > samples:
        within[0] = within[-1] = False
    return within


class Decided(NamedTuple):
    """The rows of a kind that are decided, of which there are no more than conditions.

    Arguments:
        rows: ``[..., rows]``, which of all are.
        index: ``[..., few]``, the numbers of those that are, and of others.
        place: ``[..., few]``, where their middles are, in steps from the start.
        known: ``[..., few]``, which of them are.
        weights: ``[..., few, conditions]``: the sums that they are.
    """

    rows: Tensor
    index: Tensor
    place: Tensor
    known: Tensor
    weights: Tensor


def decide_rows(conditions: Tensor, kind: str) -> Decided:
    """Find the rows within a motion that are sums of its conditions ``[..., conditions, size]``.

    With ``A' = Q R`` for conditions ``A``, a row ``r`` is one where ``|r|^2 = |Q' r|^2``, and then
    it is ``A' w`` for ``R w = Q' r``. There are no derivatives.
    """
    form = ROWS[kind]
    basis, triangle = torch.linalg.qr(conditions.detach().mT)
    within = apply_form(form, basis.mT)
    size = sum(weight**2 for weight in form)
    apart = (size - within.square().sum(-2)).abs() / size
    inside = rows_within(kind, conditions.shape[-1] - 2, conditions.device)
    apart = torch.where(inside, apart, torch.inf)
    index = apart.topk(min(apart.shape[-1], conditions.shape[-2]), largest=False).indices
    known = apart.gather(-1, index) < _APART
    chosen = index.unsqueeze(-2).expand(*index.shape[:-1], within.shape[-2], index.shape[-1])
    weights = torch.linalg.solve_triangular(triangle, within.gather(-1, chosen), upper=True).mT
    kept = known.unsqueeze(-1) & (weights.abs() > _ROUNDING)
    weights = torch.where(kept, weights, 0.0)
    return Decided(apart < _APART, index, index + (len(form) - 3) / 2, known, weights)
