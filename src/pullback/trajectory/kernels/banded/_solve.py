"""`banded_solve`: a symmetric positive definite banded system, with its exact derivatives."""

from typing import Any

from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.tensor import Function
from pullback.trajectory.kernels.banded._dispatch import solve_operator
from pullback.trajectory.kernels.banded._product import banded_product, outer_band

__all__ = ["BandedSolve", "banded_solve"]


class BandedSolve(Function):
    """Solve ``A X = B``, where ``A`` is given by its lower diagonals.

    With ``L = A^-1 G`` for a cotangent ``G``, the gradient of ``B`` is ``L`` and that of ``A`` is
    ``-L X'``, of which the band keeps what it stores.

    Source: Giles, An extended collection of matrix derivative results for forward and reverse
    mode algorithmic differentiation, 2008, section 2.3.1.
    """

    @staticmethod
    def forward(band: Tensor, right: Tensor, strict: bool = True) -> Tensor:
        return solve_operator(band, right, strict)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        band, right, ctx.strict = inputs
        ctx.right_shape = right.shape
        ctx.save_for_backward(band, output)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        band, x = ctx.saved_tensors
        dual = BandedSolve.apply(band, cotangent, ctx.strict)
        of_band = of_right = None
        if ctx.needs_input_grad[0]:
            of_band = -outer_band(dual, x, band.shape[-1] - 1).sum_to_size(band.shape)
        if ctx.needs_input_grad[1]:
            of_right = dual.sum_to_size(ctx.right_shape)
        return of_band, of_right, None

    @staticmethod
    def jvp(ctx: Any, of_band: Tensor, of_right: Tensor, _: None) -> Tensor:
        # Written out: the derived rule compares <w, Jv> with <J'w, v> to a few rounding errors,
        # and a badly conditioned system differs by its condition.
        band, x = ctx.saved_tensors
        return BandedSolve.apply(band, of_right - banded_product(of_band, x), ctx.strict)


def banded_solve(band: Tensor, right: Tensor, *, strict: bool = True) -> Tensor:
    """Solve ``A X = B`` for a symmetric positive definite banded matrix, in time linear in ``n``.

    Differentiable with respect to both arguments, to any order, in both modes and batched.

    Arguments:
        band: ``[..., n, width + 1]``, the lower diagonals: ``band[i, d] = A[i, i - d]``. Entries
            that lie outside the matrix (``d > i``) are ignored.
        right: ``[..., n, columns]``, of the same dtype; batch dimensions are broadcast.
        strict: whether a matrix that is not positive definite is an error, or gives NaN.

    Returns:
        ``[..., n, columns]``.

    Raises:
        ArgumentError: the sizes do not fit, or the matrix is not positive definite.
        ArgumentTypeError: the dtypes differ or are not real floating point numbers.

    Example:
        >>> import torch
        >>> band = torch.tensor([[2.0, 0.0], [2.0, -1.0], [2.0, -1.0]])
        >>> banded_solve(band, torch.tensor([[1.0], [0.0], [1.0]])).squeeze().tolist()
        [1.0, 1.0, 1.0]

    Source: Golub and Van Loan, Matrix Computations, section 4.3.5.
    """
    if band.dim() < 2 or right.dim() < 2 or band.shape[-2] != right.shape[-2] or not band.shape[-1]:
        raise ArgumentError(
            "The sizes of a banded system do not fit.",
            given=f"band {tuple(band.shape)}, right {tuple(right.shape)}",
            expected="band [..., n, width + 1] and right [..., n, columns]",
        )
    if band.dtype != right.dtype or not band.dtype.is_floating_point:
        raise ArgumentTypeError(
            "A banded system needs one real floating point dtype.",
            given=f"band {band.dtype}, right {right.dtype}",
            mend="Convert one of them with .to(dtype).",
        )
    return BandedSolve.apply(band, right, strict)
