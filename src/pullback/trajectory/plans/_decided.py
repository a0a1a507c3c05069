"""The rows of a motion that what is given decides: sums of its conditions, whatever else it does.

With position, velocity and acceleration at an end these are its first three, with the jerk its
fourth, and further ones where points lie near.

Motions of stepwise constant jerk are cubic splines. Four coefficients ``c[k] .. c[k + 3]`` of
theirs are the position, velocity and acceleration at sample ``k`` and the jerk after it, in steps:

    position      (c[k] + 4 c[k+1] + c[k+2]) / 6
    velocity      (c[k+2] - c[k]) / 2
    acceleration  c[k] - 2 c[k+1] + c[k+2]
    jerk          -c[k] + 3 c[k+1] - 3 c[k+2] + c[k+3]

In these a row and a condition have few entries, so that what is decided is found from a matrix of
the size of the conditions.

Source: de Boor, A Practical Guide to Splines, chapter X.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pullback.internal.kernels._shapes import broadcast_shapes
from pullback.trajectory.kernels.states import ROWS, Conditions

__all__ = ["Decided", "decide_rows", "inner_rows", "row_forms"]

_SPLINE = (
    (1 / 6, 4 / 6, 1 / 6, 0.0),
    (-1 / 2, 0.0, 1 / 2, 0.0),
    (1.0, -2.0, 1.0, 0.0),
    (-1.0, 3.0, -3.0, 1.0),
)
# Of the square of a row, what is not a sum of conditions: a point is met on a sample if it is
# a millionth of a step away.
_APART = 1e-12
# A smaller weight is rounding. That of far conditions would be seen beside limits on the jerk.
_ROUNDING = 1e-9


class Decided(NamedTuple):
    """The rows of some kinds that are decided; of each there are no more than conditions."""

    free: Tensor  # [..., kinds, samples], which of all rows are not, but of the motion
    index: Tensor  # [..., kinds, few], the samples of those that are, and 0 for others
    # [..., kinds, few + conditions], which of these are, and which of the conditions of the kind.
    known: Tensor
    weights: Tensor  # [..., kinds, few + conditions, conditions], the sums that they are


def inner_rows(kinds: tuple[str, ...], samples: int, device: torch.device) -> Tensor:
    """Which rows ``[kinds, samples]`` are of the motion: no control points outside of it."""
    inner = torch.zeros(len(kinds), samples, dtype=torch.bool, device=device)
    for number, kind in enumerate(kinds):
        inner[number, ROWS[kind].samples] = True
    return inner


def row_forms(kinds: tuple[str, ...], device: torch.device) -> Tensor:
    """What rows are of a state and a jerk: ``[kinds, 4]``."""
    forms = [ROWS[kind].form for kind in kinds]
    return torch.tensor(forms, dtype=torch.float64, device=device)


def decide_rows(
    conditions: Conditions, samples: int, given: tuple[str, ...], kinds: tuple[str, ...]
) -> Decided:
    """Find the rows within a motion that are sums of its conditions.

    With ``A' = Q R`` for conditions ``A``, a row ``r`` is one where ``|r|^2 = |Q' r|^2``, and then
    it is ``A' w`` for ``R w = Q' r``. There are no derivatives. ``given`` says what each condition
    is about.
    """
    few, device = conditions.alpha.shape[-2], conditions.alpha.device
    spline = torch.tensor(_SPLINE, dtype=torch.float64, device=device)
    batch = broadcast_shapes(conditions.alpha.shape[:-2], conditions.place.shape[:-1])
    parts = (conditions.alpha.detach() @ spline).expand(*batch, few, 4)
    places = conditions.place.unsqueeze(-1) + torch.arange(4, device=device)
    matrix = torch.zeros(*batch, few, samples + 3, dtype=torch.float64, device=device)
    matrix = matrix.scatter(-1, places.expand(*batch, few, 4), parts)
    basis, triangle = torch.linalg.qr(matrix.mT)
    forms = row_forms(kinds, device) @ spline
    reach = (basis.unfold(-2, 4, 1) @ forms.mT).movedim(-1, -3)  # [..., kinds, samples, few]
    inner = inner_rows(kinds, samples, device)
    apart = (1 - reach.square().sum(-1) / forms.square().sum(-1, keepdim=True)).abs()
    least, index = torch.where(inner, apart, torch.inf).topk(min(few, samples), largest=False)
    known = least < _APART
    index = torch.where(known, index, 0)
    right = reach.gather(-2, index.unsqueeze(-1).expand(*index.shape, few))
    weights = torch.linalg.solve_triangular(triangle.unsqueeze(-3), right.mT, upper=True).mT
    weights = torch.where(known.unsqueeze(-1) & (weights.abs() > _ROUNDING), weights, 0.0)
    own = torch.tensor([[part == kind for part in given] for kind in kinds], device=device)
    own = own.expand(*index.shape[:-1], few)
    return Decided(
        inner & (apart >= _APART),
        index,
        torch.cat([known, own], dim=-1),
        torch.cat([weights, own.to(weights.dtype).diag_embed()], dim=-2),
    )
