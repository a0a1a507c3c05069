"""Banded Cholesky in plain torch, any device and dtype: the oracle, and the path without numba.

The matrix is cut into square blocks no smaller than its width, so that only blocks beside the
diagonal are not zero: a solve takes a few batched dense operations for each block, not for each
row. Halves are computed in float32, which is what torch's dense solvers know.

Bands and their factors are ``[batch, n, width + 1]``, the lower diagonals ``band[:, i, d] =
A[i, i - d]``, right sides ``[batch, n, columns]``. What belongs to a matrix that is not positive
definite is NaN.

Source: Golub and Van Loan, Matrix Computations, sections 4.3.5 and 4.5.1.
"""

import torch
from torch import Tensor

__all__ = ["factorise", "solve", "substitute"]

_BLOCK = 32


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _split(band: Tensor) -> tuple[Tensor, Tensor]:
    """The lower blocks on the diagonal and below it: ``[batch, blocks, block, block]`` each.

    Rows are added that have a one on the diagonal, up to a whole number of blocks. The first block
    below the diagonal is zero.
    """
    size, width = band.shape[-2], band.shape[-1] - 1
    block = max(_BLOCK, width)
    more = -size % block
    ones = torch.zeros(band.shape[0], more, width + 1, dtype=band.dtype, device=band.device)
    ones[..., 0] = 1
    rows = torch.cat([band, ones], dim=1).unflatten(1, (-1, block))
    within = torch.arange(block, device=band.device)
    away = within[:, None] - within
    parts = []
    for offset in (away, away + block):
        inside = (offset >= 0) & (offset <= width)
        index = offset.clamp(0, width).expand(*rows.shape[:2], block, block)
        values = rows.gather(-1, index)
        parts.append(torch.where(inside, values, torch.zeros_like(values)))
    diagonal, below = parts
    # Entries before the first column lie outside of the matrix, whatever they are.
    below = torch.cat([torch.zeros_like(below[:, :1]), below[:, 1:]], dim=1)
    return diagonal, below


def _join(diagonal: list[Tensor], below: list[Tensor], like: Tensor) -> Tensor:
    """The band of lower blocks, the inverse of `_split`."""
    size, width = like.shape[-2], like.shape[-1] - 1
    both = torch.cat([torch.stack(below, 1), torch.stack(diagonal, 1)], dim=-1)
    block = both.shape[-2]
    row = torch.arange(block, device=like.device)
    columns = row[:, None] + block - torch.arange(width + 1, device=like.device)
    band = both.gather(-1, columns.expand(*both.shape[:2], block, width + 1))
    return band.flatten(1, 2)[:, :size].to(like.dtype)


def factorise(band: Tensor) -> Tensor:
    """The lower Cholesky factor of a symmetric positive definite banded matrix."""
    if not band.numel():
        return band.clone()
    diagonal, below = _split(_wide(band))
    roots: list[Tensor] = []
    left: list[Tensor] = []
    for i in range(diagonal.shape[1]):
        rest, low = diagonal[:, i], below[:, i]
        if i:
            low = torch.linalg.solve_triangular(roots[-1].mT, low, upper=True, left=False)
            rest = rest - low @ low.mT
        root, info = torch.linalg.cholesky_ex(rest)
        roots.append(torch.where((info > 0)[:, None, None], torch.full_like(root, torch.nan), root))
        left.append(low)
    return _join(roots, left, band)


def solve(band: Tensor, right: Tensor) -> Tensor:
    """Solve ``A X = B`` by the factor, forwards and backwards."""
    factor = factorise(_wide(band))
    half = substitute(factor, _wide(right), transposed=False)
    return substitute(factor, half, transposed=True).to(right.dtype)


def substitute(factor: Tensor, right: Tensor, *, transposed: bool) -> Tensor:
    """Solve ``L X = B``, or ``L' X = B`` if transposed, for a lower factor."""
    size = factor.shape[-2]
    if not right.numel():
        return right.clone()
    diagonal, below = _split(_wide(factor))
    count, block = diagonal.shape[1], diagonal.shape[-1]
    rows = torch.nn.functional.pad(_wide(right), (0, 0, 0, count * block - size))
    rows = rows.unflatten(1, (count, block))
    found: list[Tensor] = [rows[:, 0]] * count
    for i in reversed(range(count)) if transposed else range(count):
        value = rows[:, i]
        if transposed:
            if i + 1 < count:
                value = value - below[:, i + 1].mT @ found[i + 1]
            found[i] = torch.linalg.solve_triangular(diagonal[:, i].mT, value, upper=True)
        else:
            if i:
                value = value - below[:, i] @ found[i - 1]
            found[i] = torch.linalg.solve_triangular(diagonal[:, i], value, upper=False)
    return torch.cat(found, dim=1)[:, :size].to(right.dtype)
