"""Central differences extrapolated to a step of zero, all entries of a tableau at a time.

T(l, m) = (r^2m T(l, m-1) - T(l-1, m-1)) / (r^2m - 1), where T(l, 0) is the difference at step l
and r the ratio of one step to the next: column m has no terms up to h^(2m) any more (Ridders, as
in `_evidence`). A column depends on the one before alone, so that it is computed for all steps at
once: of a few numbers each operation of torch costs the same as of one.
"""

import math
from collections.abc import Sequence
from functools import cache

import torch

__all__ = ["extrapolate"]


def extrapolate(
    centrals: Sequence[torch.Tensor], noise: torch.Tensor, steps: Sequence[float], eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The entry of the tableau that its neighbours agree with best, its error, and its rounding.

    Of entries that agree alike the one of the larger steps is taken. Where none is finite the
    value is zero and the error infinite.

    Arguments:
        centrals: the central differences at each step, shapes ``(n,)``.
        noise: the rounding of the values that these are made of, shape ``(n,)``.
        steps: two steps or more, each the same part of the one before.
        eps: the precision of the values.

    Example:
        >>> steps = [0.1 / 4**level for level in range(8)]
        >>> centrals = [torch.tensor([math.sin(h) / h], dtype=torch.float64) for h in steps]
        >>> value, _, _ = extrapolate(centrals, torch.tensor([2.0**-52]), steps, 2.0**-52)
        >>> round(value.item(), 12)
        1.0
    """
    column, ratio = torch.stack(list(centrals)), steps[0] / steps[1]
    size = torch.tensor(steps, dtype=column.dtype, device=column.device).unsqueeze(-1)
    rounded = 2 * (noise + eps * column.abs()) / size
    values, errors, roundings = [], [], []
    for order in range(1, len(steps)):
        factor, finer, coarser = ratio ** (2 * order), column[1:], column[:-1]
        column = (factor * finer - coarser) / (factor - 1)
        apart = torch.maximum((column - finer).abs(), (column - coarser).abs())
        values.append(column)
        errors.append(apart + rounded[order:])
        roundings.append(rounded[order:])
    every = torch.cat(errors).nan_to_num(nan=math.inf, posinf=math.inf)
    in_turn = torch.tensor(_by_steps(len(steps)), device=every.device)
    best = in_turn[every[in_turn].argmin(0)].unsqueeze(0)
    error, value, rounding = (
        each.gather(0, best)[0] for each in (every, torch.cat(values), torch.cat(roundings))
    )
    known = error.isfinite()
    return torch.where(known, value, 0.0), error, torch.where(known, rounding, 0.0)


@cache
def _by_steps(count: int) -> list[int]:
    """Of the entries of a tableau, column after column, the places step after step."""
    places = [(level, order) for order in range(1, count) for level in range(order, count)]
    return sorted(range(len(places)), key=places.__getitem__)
