"""Products and solves with an upper factor ``R`` whose rows are ``[size, width]``."""

from typing import Any

import torch
from torch import Tensor

from pullback.internal.kernels._backend import cpu_or_reference, implementation, is_plain
from pullback.tensor import Function

__all__ = ["multiply", "solve"]


def multiply(factor: Tensor, x: Tensor) -> Tensor:
    """``R x [..., size, dof]``."""
    size, width = factor.shape
    ahead = torch.nn.functional.pad(x, (0, 0, 0, width - 1))
    parts = [factor[:, d, None] * ahead[..., d : d + size, :] for d in range(width)]
    return sum(parts[1:], parts[0])


def solve(factor: Tensor, right: Tensor, *, transposed: bool = False) -> Tensor:
    """``R^-1 B [..., size, dof]``, or ``R^-T B``; batches are columns."""
    rows = right.movedim(-2, 0)
    found = Substitution.apply(rows.flatten(1), factor, transposed)
    return found.unflatten(1, rows.shape[1:]).movedim(0, -2)


class Substitution(Function):
    """``R^-1 B`` or ``R^-T B``, linear in ``B``: each is the other's transpose."""

    @staticmethod
    def forward(right: Tensor, factor: Tensor, transposed: bool) -> Tensor:
        """Substitute; where something watches, in plain torch."""
        backend = cpu_or_reference(right.device) if is_plain(right, factor) else "reference"
        kernels = implementation("pullback.trajectory.kernels.banded", backend)
        return kernels.substitute(factor, right, transposed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the factor."""
        _, factor, ctx.transposed = inputs
        ctx.save_for_backward(factor)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        """Substitute the other way."""
        (factor,) = ctx.saved_tensors
        return Substitution.apply(cotangent, factor, not ctx.transposed), None, None

    @staticmethod
    def jvp(ctx: Any, of_right: Tensor, *_: Any) -> Tensor:
        """Substitute the same way."""
        # Written out: the derived rule compares <w, Jv> with <J'w, v> to a few rounding errors,
        # and a badly conditioned factor differs by its condition.
        (factor,) = ctx.saved_tensors
        return Substitution.apply(of_right, factor, ctx.transposed)
