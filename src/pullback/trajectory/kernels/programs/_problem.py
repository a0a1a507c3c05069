"""Least motions within limits, a batch of problems with one joint each, and their linear maps.

With ``x`` the change from the least motion without limits, ``g`` its velocities, accelerations
and jerks as parts of their limits, and ``A x = 0`` keeping the points and ends,

    minimise  x' P x / 2   with  A x = 0,  |g + G x| <= 1.

Both sides of a limit have a slack ``s`` and a multiplier ``z``. With the sign ``o`` of a side, 1
above and -1 below, the solution with a gap ``m`` is where

    P x + G' (o z) + A' y = 0,   o (g + G x) + s = 1,   s z = m,   A x = 0.

Source: Nocedal and Wright, Numerical Optimization, section 16.6.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pullback.trajectory.kernels.programs._cubic import (
    ACCELERATION,
    JERK,
    VELOCITY,
    add_form,
    apply_form,
    metric_band,
    metric_product,
    pull_form,
)
from pullback.trajectory.kernels.programs._least import condition_band, solve_conditioned

__all__ = [
    "EXCESS",
    "FLOOR",
    "GAP",
    "ITERATIONS",
    "KINDS",
    "POLISH",
    "ROWS",
    "TOLERANCE",
    "Problem",
    "Unknowns",
    "apply_conditions",
    "apply_metric",
    "apply_rows",
    "gap_of",
    "goal_of",
    "pull_conditions",
    "pull_rows",
    "sides",
    "solve_saddle",
]

# The product of every slack and multiplier at the solution, in units of the energy, and what they
# may sum to: the cost exceeds the least one by at most this part of it.
GAP = 1e-9
EXCESS = 1e-6
# Where motions are driven hard, the gap is this part of the square of the largest force: stiff rows
# would else be so much larger than the metric that its digits were lost, and definiteness with it.
FLOOR = 1e-13
ITERATIONS = 60
# Newton steps beyond the solution, for derivatives that are as exact as it is.
POLISH = 2
# Of stationarity, in parts of the largest force.
TOLERANCE = 1e-7

# A spline lies between its control points. Those of the velocity are differences of coefficients:
# sample k has the mean of two of them, `k` and `k + 1`. Where an end is free, and one
# of these outside of the motion, its own velocity is limited. Those of the position's cubic from
# one sample to the next are the samples themselves and what lies ahead of and behind a sample, by
# a third of a step at its velocity.
ROWS = {
    "velocity": (-1.0, 1.0),
    "acceleration": ACCELERATION,
    "jerk": JERK,
    "position": (1 / 6, 4 / 6, 1 / 6),
    "ahead": (2 / 3, 1 / 3),
    "behind": (1 / 3, 2 / 3),
    "end velocity": VELOCITY,
}
KINDS = tuple(ROWS)


class Problem(NamedTuple):
    """A batch of problems, each for one joint: every part ``[..., joint, ...]``.

    Arguments:
        level: ``[..., joint, rows]``, the derivatives without limits, as parts of the limits.
        scale: ``[..., joint, rows]``, one over the limits per step, zero where nothing is limited.
        conditions: ``[..., 1 or joint, few, samples + 2]``.
        energy: ``[..., joint]``, of the motion without limits, or of the change that the limits ask
            for, whichever is larger: the unit of the metric.
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

    def at(self, index: Any) -> "Problem":
        """Some of the problems, by an index of trajectories and joints."""
        batch, matrix = self.level.shape[:-1], self.conditions.shape[-2:]
        return self._replace(
            level=self.level[index],
            scale=self.scale.expand_as(self.level)[index],
            conditions=self.conditions.expand(*batch, *matrix)[index],
            energy=self.energy.expand(batch)[index],
        )


class Unknowns(NamedTuple):
    """Where a problem stands.

    Arguments:
        x: ``[..., samples + 2]``, the change of the coefficients.
        y: ``[..., few]``, the multipliers of the conditions.
        slack: ``[..., 2, rows]``, what is left up to the limits above and below.
        push: ``[..., 2, rows]``, their multipliers.
    """

    x: Tensor
    y: Tensor
    slack: Tensor
    push: Tensor


def sides(like: Tensor) -> Tensor:
    """The signs of both sides of a limit, ``[2, 1]``."""
    return torch.tensor([[1.0], [-1.0]], dtype=torch.float64, device=like.device)


def apply_rows(problem: Problem, x: Tensor) -> Tensor:
    """``G x``: the derivatives of a change, as parts of the limits."""
    rows = [apply_form(ROWS[kind], x) for kind in problem.kinds]
    return problem.scale * torch.cat(rows, dim=-1)


def pull_rows(problem: Problem, rows: Tensor) -> Tensor:
    """``G' r``, the transpose of `apply_rows`."""
    parts = _split_rows(problem, problem.scale * rows)
    pulled = [pull_form(ROWS[kind], part, problem.samples + 2) for kind, part in parts.items()]
    return sum(pulled[1:], pulled[0])


def apply_conditions(conditions: Tensor, x: Tensor) -> Tensor:
    """``A x``, ``[..., few]``."""
    # Not `@`: torch's product of a batch with one matrix rounds otherwise where that needs a
    # gradient, stiff rows make 1e-12 of it, and a run for a second derivative has other values.
    return torch.einsum("...fs,...s->...f", conditions, x)


def pull_conditions(conditions: Tensor, y: Tensor) -> Tensor:
    """``A' y``, the transpose of `apply_conditions`."""
    return torch.einsum("...fs,...f->...s", conditions, y)


def gap_of(problem: Problem, push: Tensor) -> Tensor:
    """The product of slack and multiplier to aim at, ``[..., joint]``."""
    force = (push * problem.scale.unsqueeze(-2)).amax((-2, -1))
    return (FLOOR * problem.energy * force.square()).clamp(min=goal_of(push.shape[-1]))


def goal_of(rows: int) -> float:
    """The gap that is asked for.

    Half the cost of a change exceeds the least one by no more than the sum of the products of
    both sides of each row, which is ``2 * rows * gap``.
    """
    return min(GAP, EXCESS / (4 * rows))


def apply_metric(problem: Problem, x: Tensor) -> Tensor:
    """``P x``, from the differences of ``x``."""
    bend, jerk = apply_form(ACCELERATION, x), apply_form(JERK, x)
    return metric_product(problem.order, bend, jerk) / problem.energy.unsqueeze(-1)


def solve_saddle(
    problem: Problem, stiff: Tensor, slope: Tensor, gap: Tensor
) -> tuple[Tensor, Tensor]:
    """Solve ``(P + G' diag(stiff) G) x + A' y = slope``, ``A x = gap``, with every derivative.

    ``stiff [..., rows]`` is positive, slopes are ``[..., samples + 2]``, gaps ``[..., few]``. Both
    results are NaN where rounding has made the matrix indefinite.
    """
    parts = _split_rows(problem, problem.scale.square() * stiff)
    bands = [add_form(ROWS[kind], part, problem.samples + 2) for kind, part in parts.items()]
    unit = 1 / problem.energy[..., None, None]
    metric = metric_band(problem.order, problem.samples, problem.level.device)
    band = unit * (metric + condition_band(problem.conditions)) + sum(bands[1:], bands[0])
    x, y = solve_conditioned(
        band,
        problem.conditions,
        weight=unit,
        slope=slope.unsqueeze(-2),
        gap=gap.unsqueeze(-2),
        strict=False,
    )
    return x.squeeze(-2), y.squeeze(-2)


def _split_rows(problem: Problem, rows: Tensor) -> dict[str, Tensor]:
    """Rows by kind: as many as places for its form."""
    sizes = [problem.samples + 3 - len(ROWS[kind]) for kind in problem.kinds]
    return dict(zip(problem.kinds, rows.split(sizes, dim=-1), strict=True))
