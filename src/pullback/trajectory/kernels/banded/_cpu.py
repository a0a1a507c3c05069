"""Substitution on the CPU, compiled by numba: row after row, the columns are the inner loop.

A row needs the one after it, so that torch has no operation for it: with one for each block a solve
of 20,000 rows and its gradient took twenty times as long.
"""

import torch
from torch import Tensor

from pullback.internal.kernels._cpu import compile_kernel

__all__ = ["substitute"]


def substitute(factor: Tensor, right: Tensor, transposed: bool) -> Tensor:
    """`_reference.substitute`, compiled."""
    x = right.detach().resolve_neg().clone(memory_format=torch.contiguous_format)
    _substitute(factor.contiguous().numpy(), x.numpy(), transposed)
    return x


@compile_kernel(nogil=True)
def _substitute(factor, x, transposed):
    (size, columns), width = x.shape, factor.shape[1]
    for step in range(size):
        i = step if transposed else size - 1 - step
        for d in range(1, min(width - 1, step) + 1):
            near = i - d if transposed else i + d
            weight = factor[near if transposed else i, d]
            for c in range(columns):
                x[i, c] -= weight * x[near, c]
        for c in range(columns):
            x[i, c] /= factor[i, 0]
