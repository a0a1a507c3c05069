"""Products of symmetric banded matrices, in torch operations with every derivative."""

import torch
from torch import Tensor

__all__ = ["banded_product", "outer_band", "shift_rows"]


def shift_rows(x: Tensor, by: int) -> Tensor:
    """Move the rows of ``x [..., n, columns]`` down by ``by``: ``result[i] = x[i - by]``.

    Up if that is negative; zeros come in.
    """
    if by == 0 or x.shape[-1] == 0:  # torch 2.7 does not pad where there are no columns
        return x
    size = x.shape[-2]
    kept = min(abs(by), size)
    if by >= 0:
        return torch.nn.functional.pad(x[..., : size - kept, :], (0, 0, kept, 0))
    return torch.nn.functional.pad(x[..., kept:, :], (0, 0, 0, kept))


def banded_product(band: Tensor, x: Tensor) -> Tensor:
    """Multiply a symmetric banded matrix with columns.

    ``y[i] = sum_d band[i, d] x[i - d] + sum_{d > 0} band[i + d, d] x[i + d]``

    Arguments:
        band: ``[..., n, width + 1]``, the lower diagonals: ``band[i, d] = A[i, i - d]``. Entries
            that lie outside the matrix (``d > i``) are ignored.
        x: ``[..., n, columns]``.

    Returns:
        ``[..., n, columns]``.

    Example:
        >>> import torch
        >>> band = torch.tensor([[2.0, 0.0], [2.0, -1.0], [2.0, -1.0]])
        >>> banded_product(band, torch.ones(3, 1)).squeeze().tolist()
        [1.0, 0.0, 1.0]
    """
    total = band[..., 0:1] * x
    for d in range(1, min(band.shape[-1], x.shape[-2])):
        diagonal = band[..., d : d + 1]
        total = total + diagonal * shift_rows(x, d) + shift_rows(diagonal * x, -d)
    return total


def outer_band(left: Tensor, right: Tensor, width: int) -> Tensor:
    """The lower diagonals of the symmetric part of ``left right'``, doubled off the diagonal.

    Of two ``[..., n, columns]`` this is the gradient ``[..., n, width + 1]`` of ``left' A right``
    with respect to the band of ``A``.
    """
    columns = [(left * right).sum(-1)]
    for d in range(1, width + 1):
        columns.append((left * shift_rows(right, d) + shift_rows(left, d) * right).sum(-1))
    return torch.stack(columns, dim=-1)
