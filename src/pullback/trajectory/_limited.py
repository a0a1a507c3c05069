"""Solve for least motions within limits, and differentiate the solution."""

from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.tensor import Function
from pullback.trajectory._interior import Problem, Unknowns, begin, newton_step, residuals

__all__ = ["follow_solution", "solve_limited", "solve_problem"]

# The product of every slack and multiplier at the solution, in units of the energy: the energy
# exceeds the least one by at most 2 * rows * this part of it.
GAP = 1e-9
_ITERATIONS = 60
# Of stationarity, in parts of the largest force.
_TOLERANCE = 1e-7


def solve_limited(problem: Problem) -> tuple[Unknowns, Tensor]:
    """The solution as a constant, and for which problems ``[...]`` it was found.

    While compiling nobody can look at the second value, so the operator itself raises.
    """
    *parts, found = _Solve.apply(
        problem.level,
        problem.scale,
        problem.conditions,
        problem.energy,
        problem.order,
        ",".join(problem.kinds),
        torch.compiler.is_compiling(),
    )
    return Unknowns(*parts), found


def follow_solution(problem: Problem, now: Unknowns) -> Tensor:
    """The change of coefficients at a solution, with its derivatives.

    Two Newton steps at the solution, which do not move it, give it the derivatives of the
    implicit function: the first step makes the first order right, the second those up to the
    third. They are the derivatives of the smoothed problem with the gap of the solution, so they
    follow which limits are active.

    Returns:
        ``[..., samples + 2]``, zero where the motion keeps its limits without a change.
    """
    target = torch.full((), GAP, dtype=torch.float64, device=problem.level.device)
    product = torch.zeros((2, 1), dtype=torch.float64, device=problem.level.device)
    for _ in range(2):
        step = newton_step(problem, now, target, product)
        now = Unknowns(*(a + b for a, b in zip(now, step, strict=True)))
    idle = (problem.level.abs() <= 1).all(-1, keepdim=True)
    return torch.where(idle, torch.zeros_like(now.x), now.x)


class _Solve(Function):
    """The solution as a constant: `follow_solution` adds its derivatives."""

    gradient = "surrogate"

    @staticmethod
    # A rule and an operator take their arguments by position.
    def forward(  # noqa: PLR0917
        level: Tensor,
        scale: Tensor,
        conditions: Tensor,
        energy: Tensor,
        order: int,
        kinds: str,
        strict: bool,
    ) -> tuple[Tensor, ...]:
        batch = level.shape[:-1]
        rows = conditions.expand(*batch, *conditions.shape[-2:])
        return _solve_operator(
            level, scale.expand_as(level), rows, energy.expand(batch), order, kinds, strict
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[-1])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[None, ...]:
        return (None,) * 7


def solve_problem(problem: Problem) -> tuple[Unknowns, Tensor]:
    """Iterate to the solution; returns it and for which problems it was found.

    Only problems that are not solved yet are carried from one iteration to the next.
    """
    batch = problem.level.shape[:-1]
    flat = _flat(problem)
    result = begin(flat)
    found = (flat.level.abs() <= 1).all(-1)
    left = (~found).nonzero().squeeze(-1)
    now = Unknowns(*(part[left] for part in result))
    for _ in range(_ITERATIONS):
        if not left.numel():
            break
        now, finished = _iterate(_chosen(flat, left), now)
        result = Unknowns(
            *(whole.index_copy(0, left, part) for whole, part in zip(result, now, strict=True))
        )
        found = found.index_copy(0, left, finished)
        # One that has left the numbers will not come back.
        going = ~finished & torch.isfinite(now.x).all(-1)
        left = left[going]
        now = Unknowns(*(part[going] for part in now))
    shaped = Unknowns(*(part.reshape(*batch, part.shape[-1]) for part in result))
    return shaped, found.reshape(batch)


def _flat(problem: Problem) -> Problem:
    """The same problems with one batch dimension."""
    count = problem.level.shape[:-1].numel()
    rows = problem.conditions
    return problem._replace(
        level=problem.level.reshape(count, problem.level.shape[-1]),
        scale=problem.scale.reshape(count, problem.scale.shape[-1]),
        conditions=rows.reshape(count, *rows.shape[-2:]),
        energy=problem.energy.reshape(count),
    )


def _chosen(problem: Problem, index: Tensor) -> Problem:
    return problem._replace(
        level=problem.level[index],
        scale=problem.scale[index],
        conditions=problem.conditions[index],
        energy=problem.energy[index],
    )


def _iterate(problem: Problem, now: Unknowns) -> tuple[Unknowns, Tensor]:
    """One predictor and corrector step, and which problems it has solved."""
    zero = torch.zeros((2, 1), dtype=torch.float64, device=problem.level.device)
    mean = _mean_product(now)
    guess = newton_step(problem, now, torch.zeros_like(mean)[..., None], zero)
    reach = _reach(now, guess)
    tried = Unknowns(*(a + reach[..., None] * b for a, b in zip(now, guess, strict=True)))
    centring = (_mean_product(tried) / mean) ** 3
    target = (centring * mean).clamp(min=GAP)[..., None]
    product = torch.stack([guess.upper * guess.push_upper, guess.lower * guess.push_lower], dim=-2)
    product = torch.where((mean < 100 * GAP)[..., None, None], zero, product)
    step = newton_step(problem, now, target, product)
    length = _reach(now, step)
    now = Unknowns(*(a + length[..., None] * b for a, b in zip(now, step, strict=True)))
    return now, _converged(problem, now)


def _mean_product(now: Unknowns) -> Tensor:
    both = now.upper * now.push_upper + now.lower * now.push_lower
    return both.mean(-1) / 2


def _reach(now: Unknowns, step: Unknowns) -> Tensor:
    """How much of a step leaves slacks and multipliers positive."""
    reach = torch.ones_like(now.upper[..., 0])
    for value, change in zip(now[2:], step[2:], strict=True):
        ratio = torch.where(change < 0, -0.995 * value / change, torch.ones_like(value))
        reach = torch.minimum(reach, ratio.amin(-1))
    return reach


def _converged(problem: Problem, now: Unknowns) -> Tensor:
    dual, upper, lower = residuals(problem, now)
    missed = torch.maximum(upper.abs().amax(-1), lower.abs().amax(-1))
    forces = (now.push_upper + now.push_lower) * problem.scale
    scale = forces.amax(-1) + torch.finfo(torch.float64).tiny
    products = torch.stack([now.upper * now.push_upper, now.lower * now.push_lower])
    centred = ((products / GAP - 1).abs() < 0.1).all(-1).all(0)
    # Rows and metric take differences of x: their rounding is the floor, however near it is.
    noise = torch.finfo(torch.float64).eps * now.x.abs().amax(-1)
    near = missed < GAP / 100 + 8 * noise * problem.scale.amax(-1)
    return centred & near & (dual.abs().amax(-1) < _TOLERANCE * scale + 64 * noise / problem.energy)


@torch.library.custom_op("pullback_trajectory::keep_limits", mutates_args=())
# Operators take their arguments by position.
def _solve_operator(  # noqa: PLR0917
    level: Tensor,
    scale: Tensor,
    conditions: Tensor,
    energy: Tensor,
    order: int,
    kinds: str,
    strict: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    problem = Problem(level, scale, conditions, energy, order, tuple(kinds.split(",")))
    now, found = solve_problem(problem)
    if strict and not bool(found.all()):
        raise ArgumentError(
            f"The limits on {kinds.replace(',', ', ')} cannot be met in the given time.",
            mend="Call it outside torch.compile to be told which limit, and the least duration.",
        )
    x, y, *rest = (part.contiguous().clone() for part in now)
    return x, y, rest[0], rest[1], rest[2], rest[3], found.clone()


@_solve_operator.register_fake
def _(  # noqa: PLR0917  # the arguments of the operator
    level: Tensor,
    scale: Tensor,
    conditions: Tensor,
    energy: Tensor,
    order: int,
    kinds: str,
    strict: bool,
) -> tuple[Tensor, ...]:
    batch = level.shape[:-1]
    x = level.new_empty((*batch, conditions.shape[-1]))
    y = level.new_empty((*batch, conditions.shape[-2]))
    rows = [level.new_empty(level.shape) for _ in range(4)]
    return (x, y, *rows, level.new_empty(batch, dtype=torch.bool))


@_solve_operator.register_vmap
def _(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    size = info.batch_size
    tensors = [
        tensor.movedim(dim, 0) if dim is not None else tensor.expand(size, *tensor.shape)
        for tensor, dim in zip(arguments[:4], in_dims[:4], strict=True)
    ]
    return _solve_operator(*tensors, *arguments[4:]), (0,) * 7
