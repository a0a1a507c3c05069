"""The solution of limited motions as one operator, which chooses a backend."""

from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.kernels._backend import cpu_or_reference, implementation
from pullback.internal.kernels._kernel import register_kernel
from pullback.trajectory.kernels.programs._decide import solve_hard
from pullback.trajectory.kernels.programs._problem import Problem, Unknowns

__all__ = ["keep_limits_operator", "solve_problems"]


def solve_problems(problem: Problem) -> tuple[Unknowns, Tensor]:
    """`_reference.solve_problems` by the backend of the device."""
    backend = cpu_or_reference(problem.level.device) if problem.level.numel() else "reference"
    kernels = implementation("pullback.trajectory.kernels.programs", backend)
    return solve_hard(problem, *kernels.solve_problems(problem))


@register_kernel("pullback_trajectory::keep_limits")
def keep_limits_operator(
    level: Tensor,
    scale: Tensor,
    conditions: Tensor,
    energy: Tensor,
    order: int,
    kinds: str,
    strict: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The parts of `Unknowns`, and for which problems they were found.

    Raises:
        ArgumentError: ``strict``, and a problem has no solution.
    """
    problem = Problem(level, scale, conditions, energy, order, tuple(kinds.split(",")))
    now, found = solve_problems(problem)
    if strict and not bool(found.all()):
        raise ArgumentError(
            f"The limits on {kinds.replace(',', ', ')} cannot be met in the given time.",
            mend="Call it outside torch.compile to be told which limit, and the least duration.",
        )
    return now.x, now.y, now.slack, now.push, found


@keep_limits_operator.register_fake
def _(level: Tensor, scale: Tensor, conditions: Tensor, *_: Any) -> tuple[Tensor, ...]:
    *batch, rows = level.shape
    few, size = conditions.shape[-2:]
    shapes = ((*batch, size), (*batch, few), (*batch, 2, rows), (*batch, 2, rows))
    return *(level.new_empty(shape) for shape in shapes), level.new_empty(batch, dtype=torch.bool)


@keep_limits_operator.register_vmap
def _(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    size, tensors = info.batch_size, []
    rank = arguments[0].dim() - (in_dims[0] is not None)
    for tensor, dim, beyond in zip(arguments[:4], in_dims[:4], (0, 0, 1, -1), strict=True):
        first = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        # Broadcasting counts dimensions from the right, so the new one stands before them all.
        missing = rank + beyond - (first.dim() - 1)
        tensors.append(first.reshape(size, *[1] * missing, *first.shape[1:]))
    return keep_limits_operator(*tensors, *arguments[4:]), (0,) * 5
