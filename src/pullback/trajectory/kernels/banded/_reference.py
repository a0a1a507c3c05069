"""Banded Cholesky in plain torch, any device and dtype: the oracle, and the path without numba."""

import torch
from torch import Tensor

__all__ = ["factorise", "solve", "substitute"]


def factorise(band: Tensor) -> Tensor:
    """The lower Cholesky factor of a symmetric positive definite banded matrix.

    ``L[i, j] = (A[i, j] - sum_k L[i, k] L[j, k]) / L[j, j]``, and ``L[i, i]`` is the square root of
    what is left on the diagonal: NaN where the matrix is not positive definite.

    Arguments:
        band: ``[batch, n, width + 1]``, the lower diagonals: ``band[:, i, d] = A[i, i - d]``.

    Returns:
        the factor in the same storage.

    Source: Golub and Van Loan, Matrix Computations, section 4.3.5.
    """
    size, width = band.shape[-2], band.shape[-1] - 1
    rows: list[Tensor] = []
    for i in range(size):
        row: dict[int, Tensor] = {}
        for d in range(min(width, i), 0, -1):
            other = rows[i - d]
            value = band[:, i, d]
            for e in range(d + 1, min(width, i) + 1):
                value = value - row[e] * other[:, e - d]
            row[d] = value / other[:, 0]
        pivot = band[:, i, 0]
        for value in row.values():
            pivot = pivot - value * value
        zero = torch.zeros_like(pivot)
        entries = [pivot.sqrt(), *(row.get(d, zero) for d in range(1, width + 1))]
        rows.append(torch.stack(entries, dim=-1))
    return torch.stack(rows, dim=-2) if rows else band.clone()


def solve(band: Tensor, right: Tensor) -> Tensor:
    """Solve ``A X = B`` by the factor, forwards and backwards.

    Arguments:
        band: ``[batch, n, width + 1]``.
        right: ``[batch, n, columns]``, with the same batch.

    Returns:
        ``[batch, n, columns]``; NaN where a matrix is not positive definite.
    """
    factor = factorise(band)
    return substitute(factor, substitute(factor, right, transposed=False), transposed=True)


def substitute(factor: Tensor, right: Tensor, *, transposed: bool) -> Tensor:
    """Solve ``L X = B``, or ``L' X = B`` if transposed, for a lower factor.

    Arguments:
        factor: ``[batch, n, width + 1]``.
        right: ``[batch, n, columns]``, with the same batch.
        transposed: which of the two.
    """
    size, width = factor.shape[-2], factor.shape[-1] - 1
    found: list[Tensor] = [right.new_empty(0)] * size
    for i in reversed(range(size)) if transposed else range(size):
        value = right[:, i]
        for d in range(1, min(width, size - 1 - i if transposed else i) + 1):
            row, other = (i + d, i + d) if transposed else (i, i - d)
            value = value - factor[:, row, d, None] * found[other]
        found[i] = value / factor[:, i, 0, None]
    return torch.stack(found, dim=-2) if size else right.clone()
