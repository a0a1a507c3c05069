"""The upper factor of a banded metric, in square blocks: its products and its solves.

``R`` is block bidiagonal: ``blocks [count, block, 2 block]`` has those on the diagonal and those
beside them, so that a solve takes a triangular one of torch's for each block, with all derivatives
of these. The factor is a constant.

Source: Golub and Van Loan, Matrix Computations, section 4.5.1.
"""

import torch
from torch import Tensor

__all__ = ["multiply", "solve", "to_blocks"]

_BLOCK = 64


def to_blocks(rows: Tensor) -> Tensor:
    """From ``rows [size, width]``, each from its diagonal on; ones are added up to whole blocks."""
    size, width = rows.shape
    block = max(width, min(_BLOCK, size))
    rows = torch.nn.functional.pad(rows, (0, 0, 0, -size % block))
    rows[size:, 0] = 1
    at = torch.arange(len(rows), device=rows.device) % block
    index = at[:, None] + torch.arange(width, device=rows.device)
    return rows.new_zeros(len(rows), 2 * block).scatter(1, index, rows).unflatten(0, (-1, block))


def _split(blocks: Tensor, x: Tensor) -> Tensor:
    """Rows ``[count, block, columns]`` of ``x [..., size, dof]``: batches are columns."""
    rows = x.movedim(-2, 0).flatten(1)
    count, block = blocks.shape[:2]
    return torch.nn.functional.pad(rows, (0, 0, 0, count * block - len(rows))).unflatten(
        0, (count, block)
    )


def _join(rows: Tensor, like: Tensor) -> Tensor:
    whole = rows.flatten(0, 1)[: like.shape[-2]]
    return whole.unflatten(1, (*like.shape[:-2], like.shape[-1])).movedim(0, -2)


def multiply(blocks: Tensor, x: Tensor) -> Tensor:
    """``R x [..., size, dof]``."""
    rows = _split(blocks, x)
    after = torch.nn.functional.pad(rows[1:], (0, 0, 0, 0, 0, 1))
    return _join(blocks @ torch.cat([rows, after], dim=1), x)


def solve(blocks: Tensor, right: Tensor, *, transposed: bool = False) -> Tensor:
    """``R^-1 B [..., size, dof]``, from the last block on, or ``R^-T B``, from the first."""
    if not right.numel():
        return right.clone()
    rows, found = _split(blocks, right), []
    diagonal, beside = blocks.tensor_split(2, dim=-1)
    if transposed:
        diagonal, beside = diagonal.mT, beside.mT.roll(1, 0)
    else:
        diagonal, beside, rows = diagonal.flip(0), beside.flip(0), rows.flip(0)
    for own, near, value in zip(diagonal, beside, rows, strict=True):
        rest = value - near @ found[-1] if found else value
        found.append(torch.linalg.solve_triangular(own, rest, upper=not transposed))
    return _join(torch.stack(found if transposed else found[::-1]), right)
