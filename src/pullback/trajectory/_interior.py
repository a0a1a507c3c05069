"""Least motions within limits: one step of a primal-dual interior-point method.

With ``x`` the change from the least motion without limits, ``g`` its velocities, accelerations
and jerks as parts of their limits, ``A x = 0`` keeping the points and ends, and slacks ``s`` and
multipliers ``z`` of both sides,

    minimise  x' P x / 2   with  A x = 0,  |g + G x| <= 1,

a Newton step solves ``(P + G' diag(z/s) G) dx + A' dy = ...``, a banded matrix beside few rows.

Source: Nocedal and Wright, Numerical Optimization, section 16.6.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pullback.trajectory._cubic import (
    ACCELERATION,
    JERK,
    VELOCITY,
    add_form,
    apply_form,
    metric_band,
    metric_product,
    pull_form,
)
from pullback.trajectory._least import condition_band, solve_conditioned

__all__ = ["Problem", "Unknowns", "begin", "newton_step", "residuals", "split_rows"]

_FORMS = {"velocity": VELOCITY, "acceleration": ACCELERATION, "jerk": JERK}


class Problem(NamedTuple):
    """A batch of problems, each for one joint: every part ``[..., joint, ...]``.

    Arguments:
        level: ``[..., rows]``, the derivatives without limits, as parts of the limits.
        scale: ``[..., rows]``, one over the limits per step, zero where nothing is limited.
        conditions: ``[..., few, samples + 2]``.
        energy: ``[...]``, of the motion without limits: the unit of the metric.
        order: 3 or 2.
        kinds: the kinds of limits, in the order of the rows.
    """

    level: Tensor
    scale: Tensor
    conditions: Tensor
    energy: Tensor
    order: int
    kinds: tuple[str, ...]

    @property
    def samples(self) -> int:
        """How many samples a motion has."""
        return self.conditions.shape[-1] - 2


class Unknowns(NamedTuple):
    """Change of the coefficients, multipliers of the conditions, slacks and their multipliers."""

    x: Tensor
    y: Tensor
    upper: Tensor
    lower: Tensor
    push_upper: Tensor
    push_lower: Tensor


def begin(problem: Problem) -> Unknowns:
    """The motion without limits, with slacks as if it kept them."""
    level = problem.level
    batch = level.shape[:-1]
    x = level.new_zeros(*batch, problem.samples + 2)
    y = level.new_zeros(*batch, problem.conditions.shape[-2])
    ones = torch.ones_like(level)
    return Unknowns(x, y, (1 - level).clamp(min=0.1), (1 + level).clamp(min=0.1), ones, ones)


def newton_step(problem: Problem, now: Unknowns, target: Tensor, product: Tensor) -> Unknowns:
    """The step to ``s z = target`` for the linearised conditions.

    Arguments:
        problem: the problems.
        now: where the step begins.
        target: ``[..., rows]`` or scalar, wanted for the products of slacks and multipliers.
        product: ``[..., 2, rows]``, products of the predictor's steps, or zero.
    """
    of_dual, of_upper, of_lower = residuals(problem, now)
    wanted_upper = target - now.upper * now.push_upper - product[..., 0, :]
    wanted_lower = target - now.lower * now.push_lower - product[..., 1, :]
    stiff_upper, stiff_lower = now.push_upper / now.upper, now.push_lower / now.lower
    pull = wanted_upper / now.upper + stiff_upper * of_upper
    pull = pull - wanted_lower / now.lower - stiff_lower * of_lower
    slope = -of_dual - _pull_rows(problem, pull)
    unit = 1 / problem.energy
    band = unit[..., None, None] * metric_band(
        problem.order, problem.samples, problem.level.device
    ) + _band_of_rows(problem, stiff_upper + stiff_lower)
    weight = unit[..., None, None]
    band = band + weight * condition_band(problem.conditions)
    gap = -(problem.conditions @ now.x.unsqueeze(-1)).mT
    x, y = solve_conditioned(
        band,
        problem.conditions,
        weight=weight,
        slope=slope.unsqueeze(-2),
        gap=gap,
        strict=False,
    )
    x, y = x.squeeze(-2), y.squeeze(-2)
    moved = _apply_rows(problem, x)
    upper, lower = -of_upper - moved, -of_lower + moved
    push_upper = (wanted_upper - now.push_upper * upper) / now.upper
    push_lower = (wanted_lower - now.push_lower * lower) / now.lower
    return Unknowns(x, y, upper, lower, push_upper, push_lower)


def residuals(problem: Problem, now: Unknowns) -> tuple[Tensor, Tensor, Tensor]:
    """What is missed of stationarity, and of the definitions of both slacks."""
    bend, jerk = apply_form(ACCELERATION, now.x), apply_form(JERK, now.x)
    metric = metric_product(problem.order, bend, jerk) / problem.energy.unsqueeze(-1)
    dual = metric + _pull_rows(problem, now.push_upper - now.push_lower)
    dual = dual + (now.y.unsqueeze(-2) @ problem.conditions).squeeze(-2)
    level = problem.level + _apply_rows(problem, now.x)
    return dual, level + now.upper - 1, now.lower - level - 1


def split_rows(problem: Problem, rows: Tensor) -> dict[str, Tensor]:
    """Rows by kind: each ``[..., samples]``, jerk one less."""
    sizes = [problem.samples - (kind == "jerk") for kind in problem.kinds]
    return dict(zip(problem.kinds, rows.split(sizes, dim=-1), strict=True))


def _apply_rows(problem: Problem, x: Tensor) -> Tensor:
    rows = [apply_form(_FORMS[kind], x) for kind in problem.kinds]
    return problem.scale * torch.cat(rows, dim=-1)


def _pull_rows(problem: Problem, rows: Tensor) -> Tensor:
    parts = split_rows(problem, problem.scale * rows)
    pulled = [pull_form(_FORMS[kind], part, problem.samples + 2) for kind, part in parts.items()]
    return sum(pulled[1:], pulled[0])


def _band_of_rows(problem: Problem, weights: Tensor) -> Tensor:
    parts = split_rows(problem, problem.scale.square() * weights)
    bands = [add_form(_FORMS[kind], part, problem.samples + 2) for kind, part in parts.items()]
    return sum(bands[1:], bands[0])
