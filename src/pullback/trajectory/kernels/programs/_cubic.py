"""Cubic splines with a knot at each sample: the space of motions of stepwise constant jerk.

A motion of ``samples`` samples has ``samples + 2`` coefficients ``c``. Per step (that is, with
the step as the unit of time), sample ``k`` has

    position      (c[k] + 4 c[k+1] + c[k+2]) / 6
    velocity      (c[k+2] - c[k]) / 2
    acceleration  c[k] - 2 c[k+1] + c[k+2]
    jerk          -c[k] + 3 c[k+1] - 3 c[k+2] + c[k+3], from sample k to sample k + 1

Coefficients are the last dimension throughout.

Source: de Boor, A Practical Guide to Splines, chapter X.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pullback.internal.kernels._backend import keep_results

__all__ = [
    "ACCELERATION",
    "JERK",
    "VELOCITY",
    "WIDTH",
    "Forms",
    "add_form",
    "apply_form",
    "boundary_rows",
    "integrate_jerk",
    "metric_band",
    "metric_product",
    "position_rows",
    "pull_form",
]

VELOCITY = (-0.5, 0.0, 0.5)
ACCELERATION = (1.0, -2.0, 1.0)
JERK = (-1.0, 3.0, -3.0, 1.0)
# The band below the diagonal that the widest form, the jerk, fills.
WIDTH = 3
# The squared acceleration of a step, (a^2 + a b + b^2) / 3, as a sum of weighted squares.
_MEAN_ACCELERATION = ((1 / 3, (1.0, -1.5, 0.0, 0.5)), (1 / 4, (0.0, 1.0, -2.0, 1.0)))
_METRICS = {2: _MEAN_ACCELERATION, 3: ((1.0, JERK),)}

Form = Sequence[float]


class Forms(NamedTuple):
    """What a motion is at its samples, per step: each ``[..., samples]``, jerk one less."""

    position: Tensor
    velocity: Tensor
    acceleration: Tensor
    jerk: Tensor


def apply_form(form: Form, c: Tensor) -> Tensor:
    """``r[k] = sum_o form[o] c[k + o]``."""
    size = c.shape[-1] - len(form) + 1
    total = form[0] * c[..., :size]
    for offset in range(1, len(form)):
        if form[offset]:
            total = total + form[offset] * c[..., offset : offset + size]
    return total


def pull_form(form: Form, r: Tensor, size: int) -> Tensor:
    """The transpose of `apply_form`: ``[..., size]``."""
    total = torch.zeros((), dtype=r.dtype, device=r.device)
    for offset, weight in enumerate(form):
        if weight:
            after = size - r.shape[-1] - offset
            total = total + weight * torch.nn.functional.pad(r, (offset, after))
    return total


def add_form(form: Form, weights: Tensor, size: int) -> Tensor:
    """The band ``[..., size, WIDTH + 1]`` of ``sum_k weights[k] form_k form_k'``."""
    diagonals = [torch.zeros_like(weights[..., :1]).expand(*weights.shape[:-1], size)] * (WIDTH + 1)
    for row, high in enumerate(form):
        moved = torch.nn.functional.pad(weights, (row, size - weights.shape[-1] - row))
        for column in range(row + 1):
            if high * form[column]:
                d = row - column
                diagonals[d] = diagonals[d] + (high * form[column]) * moved
    return torch.stack(diagonals, dim=-1)


@keep_results
def metric_band(order: int, samples: int, device: torch.device) -> Tensor:
    """The band of the squared jerk (order 3) or acceleration (order 2), summed over the steps."""
    ones = torch.ones(samples - 1, dtype=torch.float64, device=device)
    bands = [add_form(form, weight * ones, samples + 2) for weight, form in _METRICS[order]]
    return sum(bands[1:], bands[0])


def metric_product(order: int, acceleration: Tensor, jerk: Tensor) -> Tensor:
    """The metric times coefficients, from their forms: no difference is taken again."""
    size = acceleration.shape[-1] + 2
    if order == 3:
        return pull_form(JERK, jerk, size)
    left, right = acceleration[..., :-1], acceleration[..., 1:]
    pad = torch.nn.functional.pad
    mass = pad(2 * left + right, (0, 1)) / 6 + pad(left + 2 * right, (1, 0)) / 6
    return pull_form(ACCELERATION, mass, size)


def integrate_jerk(first: Tensor, jerk: Tensor) -> Forms:
    """The forms, from the first three coefficients ``[..., 3]`` and the jerk.

    Sums are exact where third differences of the coefficients would cancel: with 2,000 samples a
    difference has lost ten digits.
    """
    pad = torch.nn.functional.pad
    bend = first[..., 0:1] - 2 * first[..., 1:2] + first[..., 2:3]
    acceleration = bend + pad(jerk.cumsum(-1), (1, 0))
    slope = (first[..., 1:2] - first[..., 0:1]) + pad(acceleration.cumsum(-1), (1, 0))
    middle = first[..., 0:1] + slope[..., :-1].cumsum(-1)
    velocity = (slope[..., :-1] + slope[..., 1:]) / 2
    return Forms(middle + acceleration / 6, velocity, acceleration, jerk)


def position_rows(places: Tensor, samples: int) -> Tensor:
    """Rows that give the position at places counted in steps: ``[..., count, samples + 2]``."""
    centre = torch.arange(-1, samples + 1, dtype=places.dtype, device=places.device)
    away = (places.unsqueeze(-1) - centre).abs()
    return ((2 - away).clamp(min=0) ** 3 - 4 * (1 - away).clamp(min=0) ** 3) / 6


def boundary_rows(form: Form, samples: int, *, at_end: bool, device: torch.device) -> Tensor:
    """The row that gives a derivative at the first or last sample: ``[samples + 2]``."""
    row = torch.tensor(form, dtype=torch.float64, device=device)
    gap = samples + 2 - len(form)
    return torch.nn.functional.pad(row, (gap, 0) if at_end else (0, gap))
