"""The motion of least jerk or acceleration under linear conditions, as a linear map of them."""

from typing import NamedTuple

import torch
from torch import Tensor

from pullback.internal.kernels._shapes import broadcast_shapes
from pullback.trajectory.kernels.banded import banded_solve
from pullback.trajectory.kernels.programs._cubic import (
    JERK,
    WIDTH,
    Forms,
    apply_form,
    integrate_jerk,
    metric_band,
    metric_product,
)

__all__ = ["Basis", "condition_band", "least_basis", "solve_conditioned"]

# Each pass leaves of the error its product with condition and rounding: 1e-8 at 256 samples, and at
# 2,048 a thousandth, or half of it where an end is free. Samples, and passes up to so many.
_PASSES = ((512, 1), (1024, 4), (2048, 16))


class Basis(NamedTuple):
    """The forms of the least motion for each condition alone, ``[..., conditions, samples]``."""

    forms: Forms
    first: Tensor


def condition_band(conditions: Tensor) -> Tensor:
    """The band ``[..., size, WIDTH + 1]`` of ``A' A`` for rows ``A`` of at most four neighbours."""
    size = conditions.shape[-1]
    diagonals = [conditions.square().sum(-2)]
    for d in range(1, WIDTH + 1):
        product = (conditions[..., d:] * conditions[..., : size - d]).sum(-2)
        diagonals.append(torch.nn.functional.pad(product, (d, 0)))
    return torch.stack(diagonals, dim=-1)


def solve_conditioned(
    band: Tensor, conditions: Tensor, *, weight: Tensor, slope: Tensor, gap: Tensor, strict: bool
) -> tuple[Tensor, Tensor]:
    """Solve ``H x + A' y = slope``, ``A x = gap`` for a banded ``H``, for several right sides.

    ``H + weight A' A`` has the same solution and is definite where ``H`` alone is not. Its
    inverse on the rows of ``A`` leaves a dense system of the size of the conditions.

    Arguments:
        band: ``[..., size, WIDTH + 1]``, of ``H + weight A' A``.
        conditions: ``[..., rows, size]``, the matrix ``A``.
        weight: ``[..., 1, 1]``.
        slope: ``[..., columns, size]``.
        gap: ``[..., columns, rows]``.
        strict: whether a matrix that is not definite is an error, or the result is NaN.

    Returns:
        ``x [..., columns, size]`` and ``y [..., columns, rows]``.

    Source: Benzi, Golub and Liesen, Numerical solution of saddle point problems, 2005, sections
    5 and 6.
    """
    rows = conditions.shape[-2]
    batch = broadcast_shapes(*(part.shape[:-2] for part in (band, conditions, slope, gap)))
    # Expanded, so that products round alike whether or not a gradient is needed: see
    # `apply_conditions`.
    conditions = conditions.expand(*batch, *conditions.shape[-2:])
    right = (slope + weight * (gap @ conditions)).expand(*batch, *slope.shape[-2:])
    solved = banded_solve(band, torch.cat([conditions, right], dim=-2).mT, strict=strict).mT
    spread, plain = solved[..., :rows, :], solved[..., rows:, :]
    schur = conditions @ spread.mT
    rest = plain @ conditions.mT - gap
    dual = torch.linalg.solve_ex(schur, rest.mT).result.mT
    return plain - dual @ spread, dual


def least_basis(order: int, conditions: Tensor) -> Basis:
    """For each condition, the motion of least norm that meets it with 1 and the others with 0.

    The metric of third differences has a condition of about ``samples ** 6 / 1000``. So the jerk
    is kept beside the coefficients and each pass corrects it by what the integrated motion still
    misses, instead of differencing coefficients.

    Arguments:
        order: 3 for the jerk, 2 for the acceleration.
        conditions: ``[..., rows, samples + 2]``.
    """
    rows, size = conditions.shape[-2:]
    samples = size - 2
    weight = torch.ones(1, 1, dtype=conditions.dtype, device=conditions.device)
    band = metric_band(order, samples, conditions.device) + condition_band(conditions)
    wanted = torch.eye(rows, dtype=conditions.dtype, device=conditions.device)
    wanted = wanted.expand(*conditions.shape[:-2], rows, rows)
    slope = torch.zeros_like(conditions)
    step, dual = solve_conditioned(
        band, conditions, weight=weight, slope=slope, gap=wanted, strict=True
    )
    first, jerk = step[..., :3], apply_form(JERK, step)
    for _ in range(next(passes for most, passes in _PASSES if samples <= most)):
        forms = integrate_jerk(first, jerk)
        coefficients = _coefficients(first, forms)
        slope = -metric_product(order, forms.acceleration, jerk) - dual @ conditions
        gap = wanted - coefficients @ conditions.mT
        step, more = solve_conditioned(
            band, conditions, weight=weight, slope=slope, gap=gap, strict=True
        )
        first, jerk, dual = first + step[..., :3], jerk + apply_form(JERK, step), dual + more
    return Basis(integrate_jerk(first, jerk), first)


def _coefficients(first: Tensor, forms: Forms) -> Tensor:
    """The coefficients of a motion: those in the middle are ``position - acceleration / 6``."""
    middle = forms.position - forms.acceleration / 6
    last = 2 * middle[..., -1:] - middle[..., -2:-1] + forms.acceleration[..., -1:]
    return torch.cat([first[..., :1], middle, last], dim=-1)
