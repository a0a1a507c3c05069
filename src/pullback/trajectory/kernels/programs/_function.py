"""The solution of limited motions, differentiated by the implicit function theorem."""

from typing import Any

import torch
from torch import Tensor

from pullback.tensor import Function
from pullback.trajectory.kernels.programs._dispatch import keep_limits_operator
from pullback.trajectory.kernels.programs._problem import (
    Problem,
    Unknowns,
    apply_conditions,
    apply_metric,
    apply_rows,
    pull_conditions,
    pull_rows,
    sides,
    solve_saddle,
)

__all__ = ["KeepLimits", "keep_limits"]


def keep_limits(problem: Problem) -> tuple[Tensor, Tensor]:
    """The change of coefficients that keeps the limits, and for which problems there is one.

    While compiling nobody can look at the second value, so the operator itself raises.

    Returns:
        ``[..., joint, samples + 2]``, with every derivative and zero where the motion keeps its
        limits without a change, and ``[..., joint]``.
    """
    kinds, strict = ",".join(problem.kinds), torch.compiler.is_compiling()
    x, *_, found = KeepLimits.apply(*problem[:5], kinds, strict)
    idle = (problem.level.abs() <= 1).all(-1, keepdim=True)
    return torch.where(idle, torch.zeros_like(x), x), found


class KeepLimits(Function):
    """The parts of `Problem` to those of `Unknowns`, and whether they were found.

    Where ``F(u, p) = 0`` defines the solution ``u``, a cotangent ``c`` of it has the gradient
    ``-(dF/dp)' (dF/du)'^-1 c``: one more solve with the matrix of the last Newton step. As that is
    written in terms of the solution, whose derivative this is, it holds for every order. The
    derivatives are those of the problem with the gap of the solution, so they follow which limits
    are active. The energy is a unit: it scales the multipliers, and moves ``x`` by the gap alone.

    Source: Amos and Kolter, OptNet, 2017, section 3.
    """

    @staticmethod
    def forward(
        level: Tensor,
        scale: Tensor,
        conditions: Tensor,
        energy: Tensor,
        order: int,
        kinds: str,
        strict: bool,
    ) -> tuple[Tensor, ...]:
        """Solve the problems."""
        return keep_limits_operator(level, scale, conditions, energy, order, kinds, strict)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the problems and their solutions."""
        *tensors, ctx.order, ctx.kinds, _ = inputs
        ctx.save_for_backward(*tensors, *output[:4])
        ctx.mark_non_differentiable(output[4])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Solve with the transposed derivative of the conditions of optimality."""
        problem, now = _restore(ctx)
        of_x, of_y, of_slack, of_push = _filled(cotangents[:4], now)
        sign, stiff = sides(problem.level), now.push / now.slack
        # Eliminate the multipliers of slacks and products, as a Newton step does.
        total = stiff.sum(-2)
        moved = (sign * (of_slack - stiff * of_push)).sum(-2) / total
        by_x, by_y, of_level = _solve(problem, total, moved, -of_x, -of_y)
        of_scale = of_conditions = of_energy = None
        if ctx.needs_input_grad[1]:
            unit = problem._replace(scale=torch.ones_like(problem.scale))
            push = (sign * now.push).sum(-2)
            of_scale = push * apply_rows(unit, by_x) + of_level * apply_rows(unit, now.x)
            of_scale = of_scale.sum_to_size(problem.scale.shape)
        if ctx.needs_input_grad[2]:
            outer = now.y.unsqueeze(-1) * by_x.unsqueeze(-2)
            outer = outer + by_y.unsqueeze(-1) * now.x.unsqueeze(-2)
            of_conditions = outer.sum_to_size(problem.conditions.shape)
        if ctx.needs_input_grad[3]:
            of_energy = -(apply_metric(problem, now.x) * by_x).sum(-1) / problem.energy
            of_energy = of_energy.sum_to_size(problem.energy.shape)
        return of_level, of_scale, of_conditions, of_energy, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        """Solve with the derivative of the conditions of optimality."""
        # Written out: the derived rule compares <w, Jv> with <J'w, v> to a few rounding errors,
        # and a badly conditioned system differs by its condition.
        problem, now = _restore(ctx)
        of_level, of_scale, of_conditions, of_energy = _filled(tangents[:4], problem[:4])
        sign, stiff = sides(problem.level), now.push / now.slack
        turned, total = problem._replace(scale=of_scale), stiff.sum(-2)
        moved = -(of_level + apply_rows(turned, now.x))
        slope = -pull_rows(turned, (sign * now.push).sum(-2))
        slope = slope - pull_conditions(of_conditions, now.y)
        slope = slope + apply_metric(problem, now.x) * (of_energy / problem.energy).unsqueeze(-1)
        gap = -apply_conditions(of_conditions, now.x)
        x, y, force = _solve(problem, total, moved, slope, gap)
        slack = -sign * (force / total).unsqueeze(-2)
        return x, y, slack, -stiff * slack, None


def _solve(
    problem: Problem, stiff: Tensor, moved: Tensor, slope: Tensor, gap: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Solve ``P x + G' f + A' y = slope``, ``f = stiff (G x - moved)``, ``A x = gap``.

    By `solve_saddle`, and once more for what it misses, with the forces ``f`` of the rows apart: a
    stiff row makes of the rounding of ``G x - moved`` a wrong force, and that the forces do not
    balance tells by how much. Without it a derivative rounds at 1e-8.

    Returns:
        ``x``, ``y`` and the forces ``[..., rows]``.
    """
    x, y = solve_saddle(problem, stiff, slope + pull_rows(problem, stiff * moved), gap)
    force = stiff * (apply_rows(problem, x) - moved)
    balance = apply_metric(problem, x) + pull_rows(problem, force)
    balance = balance + pull_conditions(problem.conditions, y)
    gone = gap - apply_conditions(problem.conditions, x)
    more_x, more_y = solve_saddle(problem, stiff, slope - balance, gone)
    return x + more_x, y + more_y, force + stiff * apply_rows(problem, more_x)


def _restore(ctx: Any) -> tuple[Problem, Unknowns]:
    level, scale, conditions, energy, *parts = ctx.saved_tensors
    kinds = tuple(ctx.kinds.split(","))
    return Problem(level, scale, conditions, energy, ctx.order, kinds), Unknowns(*parts)


def _filled(changes: tuple[Tensor | None, ...], parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(
        torch.zeros_like(part) if change is None else change
        for part, change in zip(parts, changes, strict=True)
    )
