"""Solves with the Cholesky factor of a banded matrix: half of a `banded_solve`, either half."""

from typing import Any

import torch
from torch import Tensor

from pullback.tensor import Function
from pullback.trajectory.kernels.banded._dispatch import substitute_operator
from pullback.trajectory.kernels.banded._product import shift_rows

__all__ = ["TriangularSolve", "triangular_product", "triangular_solve"]


def triangular_product(factor: Tensor, x: Tensor, *, transposed: bool) -> Tensor:
    """``L x``, or ``L' x`` if transposed, for ``x [..., n, columns]``."""
    total = factor[..., 0:1] * x
    for d in range(1, min(factor.shape[-1], x.shape[-2])):
        diagonal = factor[..., d : d + 1]
        more = shift_rows(diagonal * x, -d) if transposed else diagonal * shift_rows(x, d)
        total = total + more
    return total


def triangular_solve(factor: Tensor, right: Tensor, *, transposed: bool) -> Tensor:
    """``L^-1 B [..., n, columns]`` for a banded factor, or ``L^-T B``, with every derivative.

    Example:
        >>> import torch
        >>> import torch
        >>> factor = torch.tensor([[2.0, 0.0], [2.0, 1.0]])  # of [[4, 2], [2, 5]]
        >>> triangular_solve(factor, torch.tensor([[2.0], [3.0]]), transposed=False).tolist()
        [[1.0], [1.0]]
    """
    return TriangularSolve.apply(factor, right, transposed)


class TriangularSolve(Function):
    """``L^-1 B`` or ``L^-T B``: each is the other's rule for the cotangent.

    Source: Giles, An extended collection of matrix derivative results, 2008, section 2.3.1.
    """

    @staticmethod
    def forward(factor: Tensor, right: Tensor, transposed: bool) -> Tensor:
        return substitute_operator(factor, right, transposed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        factor, right, ctx.transposed = inputs
        ctx.right_shape = right.shape
        ctx.save_for_backward(factor, output)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        factor, x = ctx.saved_tensors
        dual = TriangularSolve.apply(factor, cotangent, not ctx.transposed)
        of_factor = of_right = None
        if ctx.needs_input_grad[0]:
            rows, columns = (x, dual) if ctx.transposed else (dual, x)
            diagonals = [(rows * shift_rows(columns, d)).sum(-1) for d in range(factor.shape[-1])]
            of_factor = -torch.stack(diagonals, dim=-1).sum_to_size(factor.shape)
        if ctx.needs_input_grad[1]:
            of_right = dual.sum_to_size(ctx.right_shape)
        return of_factor, of_right, None

    @staticmethod
    def jvp(ctx: Any, of_factor: Tensor, of_right: Tensor, _: None) -> Tensor:
        # Written out for the reason given in `BandedSolve.jvp`.
        factor, x = ctx.saved_tensors
        moved = triangular_product(of_factor, x, transposed=ctx.transposed)
        return TriangularSolve.apply(factor, of_right - moved, ctx.transposed)
