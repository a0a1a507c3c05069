"""Substitution in plain torch: a triangular solve of torch's for each block of the factor.

Source: Golub and Van Loan, Matrix Computations, section 4.5.1.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["substitute"]

_BLOCK = 64


def substitute(factor: Tensor, right: Tensor, transposed: bool) -> Tensor:
    """``R^-1 B``, from the last row on, or ``R^-T B``, from the first, of ``B [size, columns]``.

    ``factor [size, width]`` has the rows of ``R``, each from its diagonal on.
    """
    if not right.numel():
        return right.clone()
    blocks = _to_blocks(factor)
    rows = pad(right, (0, 0, 0, -len(right) % blocks.shape[1]))
    rows = rows.reshape(len(blocks), -1, right.shape[1])
    diagonal, beside = blocks.tensor_split(2, dim=-1)
    if transposed:
        diagonal, beside = diagonal.mT, beside.mT.roll(1, 0)
    else:
        diagonal, beside, rows = diagonal.flip(0), beside.flip(0), rows.flip(0)
    found: list[Tensor] = []
    for own, near, value in zip(diagonal, beside, rows, strict=True):
        rest = value - near @ found[-1] if found else value
        found.append(torch.linalg.solve_triangular(own, rest, upper=not transposed))
    return torch.cat(found if transposed else found[::-1])[: len(right)]


def _to_blocks(rows: Tensor) -> Tensor:
    """The blocks on the diagonal and those beside them, ``[count, block, 2 block]``.

    Ones are added up to whole blocks.
    """
    size, width = rows.shape
    block = max(width, min(_BLOCK, size))
    rows = pad(rows, (0, 0, 0, -size % block))
    rows[size:, 0] = 1
    at = torch.arange(len(rows), device=rows.device) % block
    index = at[:, None] + torch.arange(width, device=rows.device)
    return rows.new_zeros(len(rows), 2 * block).scatter(1, index, rows).unflatten(0, (-1, block))
