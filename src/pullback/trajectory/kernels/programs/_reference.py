"""Interior points in plain torch, any device: the oracle, and the path without numba.

Source: Nocedal and Wright, Numerical Optimization, section 16.6: Mehrotra's predictor and
corrector.
"""

import torch
from torch import Tensor

from pullback.trajectory.kernels.programs._problem import (
    ITERATIONS,
    POLISH,
    TOLERANCE,
    Problem,
    Unknowns,
    apply_conditions,
    apply_metric,
    apply_rows,
    gap_of,
    pull_conditions,
    pull_rows,
    sides,
    solve_saddle,
)

__all__ = ["residuals", "solve_problems"]


def solve_problems(problem: Problem) -> tuple[Unknowns, Tensor]:
    """Iterate to the solutions; returns them and for which problems ``[..., joint]`` it was found.

    Only problems that are not solved yet are carried from one iteration to the next. One whose
    motion keeps its limits without a change stays where it begins, at ``x = 0``.
    """
    batch = problem.level.shape[:-1]
    flat = _flat(problem)
    result = _begin(flat)
    found = (flat.level.abs() <= 1).all(-1)
    left = (~found).nonzero().squeeze(-1)
    now = Unknowns(*(part[left] for part in result))
    for _ in range(ITERATIONS):
        if not left.numel():
            break
        chosen = flat.at(left)
        now = _advance(chosen, now)
        finished = _converged(chosen, now)
        final = _polish(flat.at(left[finished]), Unknowns(*(part[finished] for part in now)))
        result = _replace(result, left, now)
        result = _replace(result, left[finished], final)
        found = found.index_copy(0, left, finished)
        # One that has left the numbers will not come back.
        going = ~finished & torch.isfinite(now.x).all(-1)
        left = left[going]
        now = Unknowns(*(part[going] for part in now))
    shaped = Unknowns(*(part.reshape(*batch, *part.shape[1:]) for part in result))
    return shaped, found.reshape(batch)


def residuals(problem: Problem, now: Unknowns) -> tuple[Tensor, Tensor]:
    """What is missed of stationarity, and of the definitions of both slacks."""
    sign = sides(problem.level)
    dual = apply_metric(problem, now.x) + pull_rows(problem, (sign * now.push).sum(-2))
    dual = dual + pull_conditions(problem.conditions, now.y)
    reached = problem.level + apply_rows(problem, now.x)
    return dual, sign * reached.unsqueeze(-2) + now.slack - 1


def _flat(problem: Problem) -> Problem:
    """The same problems with one batch dimension."""
    batch, rows = problem.level.shape[:-1], problem.level.shape[-1]
    count, matrix = batch.numel(), problem.conditions.shape[-2:]
    return problem._replace(
        level=problem.level.reshape(count, rows),
        scale=problem.scale.expand(*batch, rows).reshape(count, rows),
        conditions=problem.conditions.expand(*batch, *matrix).reshape(count, *matrix),
        energy=problem.energy.expand(batch).reshape(count),
    )


def _replace(whole: Unknowns, index: Tensor, parts: Unknowns) -> Unknowns:
    pairs = zip(whole, parts, strict=True)
    return Unknowns(*(a.index_copy(0, index, b) for a, b in pairs))


def _begin(problem: Problem) -> Unknowns:
    """The motion without limits, with slacks as if it kept them."""
    level = problem.level
    x = level.new_zeros(*level.shape[:-1], problem.samples + 2)
    y = level.new_zeros(*level.shape[:-1], problem.conditions.shape[-2])
    slack = (1 - sides(level) * level.unsqueeze(-2)).clamp(min=0.1)
    return Unknowns(x, y, slack, torch.ones_like(slack))


def _newton(problem: Problem, now: Unknowns, wanted: Tensor) -> Unknowns:
    """The step by which the products of slacks and multipliers change by ``[..., 2, rows]``."""
    dual, missed = residuals(problem, now)
    sign = sides(problem.level)
    pull = sign * (wanted + now.push * missed) / now.slack
    slope = -dual - pull_rows(problem, pull.sum(-2))
    gap = -apply_conditions(problem.conditions, now.x)
    x, y = solve_saddle(problem, (now.push / now.slack).sum(-2), slope, gap)
    slack = -missed - sign * apply_rows(problem, x).unsqueeze(-2)
    return Unknowns(x, y, slack, (wanted - now.push * slack) / now.slack)


def _advance(problem: Problem, now: Unknowns) -> Unknowns:
    """A predictor and a corrector step."""
    product = now.slack * now.push
    mean = product.mean((-2, -1), keepdim=True)
    guess = _newton(problem, now, -product)
    tried = _moved(now, guess, _reach(now, guess))
    after = (tried.slack * tried.push).mean((-2, -1), keepdim=True)
    least = gap_of(problem, now.push)[..., None, None]
    target = torch.maximum((after / mean) ** 3 * mean, least)
    bent = torch.where(mean < 100 * least, torch.zeros_like(product), guess.slack * guess.push)
    step = _newton(problem, now, target - product - bent)
    return _moved(now, step, _reach(now, step))


def _polish(problem: Problem, now: Unknowns) -> Unknowns:
    gap = gap_of(problem, now.push)[..., None, None]
    for _ in range(POLISH):
        step = _newton(problem, now, gap - now.slack * now.push)
        now = _moved(now, step, _reach(now, step))
    return now


def _moved(now: Unknowns, step: Unknowns, length: Tensor) -> Unknowns:
    short = length[..., None]
    parts = zip(now, step, (short, short, short[..., None], short[..., None]), strict=True)
    return Unknowns(*(a + part * b for a, b, part in parts))


def _reach(now: Unknowns, step: Unknowns) -> Tensor:
    """How much of a step leaves slacks and multipliers positive."""
    values, changes = torch.stack([now.slack, now.push]), torch.stack([step.slack, step.push])
    ratio = torch.where(changes < 0, -0.995 * values / changes, torch.ones_like(values))
    return ratio.amin((-2, -1)).amin(0).clamp(max=1)


def _converged(problem: Problem, now: Unknowns) -> Tensor:
    dual, missed = residuals(problem, now)
    force = (now.push.sum(-2) * problem.scale).amax(-1) + torch.finfo(torch.float64).tiny
    gap = gap_of(problem, now.push)
    centred = ((now.slack * now.push / gap[..., None, None] - 1).abs() < 0.1).all(-1).all(-1)
    # Rows and metric take differences of x: their rounding is the floor, however near it is.
    noise = torch.finfo(torch.float64).eps * now.x.abs().amax(-1)
    near = missed.abs().amax((-2, -1)) < 1e-11 + 8 * noise * problem.scale.amax(-1)
    balanced = dual.abs().amax(-1) < TOLERANCE * force + 64 * noise / problem.energy
    return centred & near & balanced
