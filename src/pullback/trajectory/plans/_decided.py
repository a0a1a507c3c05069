"""The rows of a motion that what is given decides: sums of its conditions, whatever else it does.

With position, velocity and acceleration at an end these are its first three coefficients, with the
jerk its fourth, and further ones where points lie near.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pullback.trajectory.kernels.programs._least import condition_band
from pullback.trajectory.kernels.programs._problem import ROWS

__all__ = ["AT_END", "Decided", "decide_rows", "inner_rows"]

# The velocity at ends that are free, beside the control points within the motion.
AT_END = "end velocity"
# Of the square of a row, what is not a sum of conditions: a point is met on a sample if it is
# a millionth of a step away.
_APART = 1e-12
# A smaller weight is rounding. That of far conditions would be seen beside limits on the jerk.
_ROUNDING = 1e-9
_WIDEST = max(len(form) for form in ROWS.values())


class Decided(NamedTuple):
    """The rows of some kinds that are decided; of each there are no more than conditions.

    Arguments:
        free: ``[..., kinds, samples + 1]``, which of all rows are not, but of the motion.
        index: ``[..., kinds, few]``, the numbers of those that are, and 0 for others.
        known: ``[..., kinds, few + conditions]``, which of these are, and after them which of the
            conditions themselves are of the kind.
        weights: ``[..., kinds, few + conditions, conditions]``: the sums that they are.
    """

    free: Tensor
    index: Tensor
    known: Tensor
    weights: Tensor


def inner_rows(kind: str, rows: Tensor) -> Tensor:
    """The rows that are of the motion ``[..., fewer]``: no control points outside of it."""
    if kind == AT_END:
        return torch.cat([rows[..., :1], rows[..., -1:]], dim=-1)
    return rows[..., 1:-1] if len(ROWS[kind]) == 2 else rows


def _are_inner(kinds: tuple[str, ...], samples: int, device: torch.device) -> Tensor:
    """Which rows ``[kinds, samples + 1]`` are those of `inner_rows`."""
    inner = torch.zeros(len(kinds), samples + 1, dtype=torch.bool, device=device)
    for number, kind in enumerate(kinds):
        count = samples + 3 - len(ROWS[kind])
        if kind == AT_END:
            inner[number, : count : count - 1] = True
        else:
            first = int(count > samples)
            inner[number, first : count - first] = True
    return inner


def decide_rows(conditions: Tensor, given: tuple[str, ...], kinds: tuple[str, ...]) -> Decided:
    """Find the rows within a motion that are sums of its conditions ``[..., conditions, size]``.

    With ``A' = Q R`` for conditions ``A``, a row ``r`` is one where ``|r|^2 = |Q' r|^2``, and then
    it is ``A' w`` for ``R w = Q' r``. There are no derivatives. ``given`` says what each condition
    is about.
    """
    few, size = conditions.shape[-2:]
    device = conditions.device
    basis, triangle = torch.linalg.qr(conditions.detach().mT)
    forms = [_wide_form(kind) for kind in kinds]
    inner = _are_inner(kinds, size - 2, device)
    apart = torch.where(inner, _apart(basis, kinds), torch.inf)
    least, index = apart.topk(min(few, apart.shape[-1]), largest=False)
    known = least < _APART
    index = torch.where(known, index, 0)  # of the others, all rows of a kind may be fewer
    # The rows that were chosen, times the basis.
    places = index.unsqueeze(-1) + torch.arange(_WIDEST, device=device)
    places = places.clamp(max=size - 1).flatten(-3).unsqueeze(-1)
    near = basis.gather(-2, places.expand(*places.shape[:-1], few))
    near = near.unflatten(-2, (*index.shape[-2:], _WIDEST)).movedim(-2, -1)
    right = near @ torch.tensor(forms, dtype=basis.dtype, device=device)[:, None, :, None]
    weights = torch.linalg.solve_triangular(
        triangle.unsqueeze(-3), right.squeeze(-1).mT, upper=True
    )
    weights = torch.where(known.unsqueeze(-1) & (weights.mT.abs() > _ROUNDING), weights.mT, 0.0)
    own = torch.tensor([[part == kind for part in given] for kind in kinds], device=device)
    own = own.expand(*index.shape[:-1], few)
    return Decided(
        inner & (apart >= _APART),
        index,
        torch.cat([known, own], dim=-1),
        torch.cat([weights, own.to(weights.dtype).diag_embed()], dim=-2),
    )


def _apart(basis: Tensor, kinds: tuple[str, ...]) -> Tensor:
    """The part of the square of each row that is no sum of conditions: ``[..., kinds, size - 1]``.

    From the band of ``Q Q'`` alone, as a row has few neighbours.
    """
    band = torch.nn.functional.pad(condition_band(basis.mT), (0, 0, 0, _WIDEST - 2))
    pairs = torch.tensor(_pairs(kinds), dtype=basis.dtype, device=basis.device)
    return (1 - pairs @ band.unfold(-2, _WIDEST, 1).flatten(-2).mT).abs()


def _pairs(kinds: tuple[str, ...]) -> list[list[float]]:
    """What each entry of the band counts for in the square of a row of length one."""
    found, steps = [], range(_WIDEST)
    for form in map(_wide_form, kinds):
        unit = 1 / sum(weight**2 for weight in form)
        counts = [(unit if d == 0 else 2 * unit, d, a) for d in steps for a in steps]
        found.append([n * form[a] * form[a - d] if a >= d else 0.0 for n, d, a in counts])
    return found


def _wide_form(kind: str) -> tuple[float, ...]:
    return (*ROWS[kind], *[0.0] * (_WIDEST - len(ROWS[kind])))
