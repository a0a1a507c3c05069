"""Solves with the Cholesky factor of a banded matrix: half of a `banded_solve`, either half."""

from typing import Any

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
    """``L^-1 B [..., n, columns]``, or ``L^-T B``, for a banded factor, which is a constant.

    Example:
        >>> import torch
        >>> factor = torch.tensor([[2.0, 0.0], [2.0, 1.0]])  # of [[4, 2], [2, 5]]
        >>> triangular_solve(factor, torch.tensor([[2.0], [3.0]]), transposed=False).tolist()
        [[1.0], [1.0]]
    """
    return TriangularSolve.apply(right, factor.detach(), transposed)


class TriangularSolve(Function):
    """``L^-1 B`` or ``L^-T B``, linear in ``B``: each is the other's transpose."""

    @staticmethod
    def forward(right: Tensor, factor: Tensor, transposed: bool) -> Tensor:
        return substitute_operator(factor, right, transposed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        right, factor, ctx.transposed = inputs
        ctx.right_shape = right.shape
        ctx.save_for_backward(factor)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        (factor,) = ctx.saved_tensors
        dual = TriangularSolve.apply(cotangent, factor, not ctx.transposed)
        return dual.sum_to_size(ctx.right_shape), None, None

    @staticmethod
    def jvp(ctx: Any, of_right: Tensor, *_: Any) -> Tensor:
        # Written out for the reason given in `BandedSolve.jvp`.
        (factor,) = ctx.saved_tensors
        return TriangularSolve.apply(of_right, factor, ctx.transposed)
