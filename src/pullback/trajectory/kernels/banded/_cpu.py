"""Banded Cholesky on the CPU, compiled by numba: the columns are the inner loop."""

import math

import numpy as np
import torch
from torch import Tensor

from pullback.internal.kernels._cpu import compile_kernel, compile_part

__all__ = ["solve", "substitute"]

_kernel, _part = compile_kernel(nogil=True), compile_part(nogil=True)


@_part
def _factorise(band: np.ndarray, factor: np.ndarray) -> None:
    size, width = band.shape[0], band.shape[1] - 1
    for i in range(size):
        reach = min(width, i)
        pivot = band[i, 0]
        for d in range(reach, 0, -1):
            value = band[i, d]
            for e in range(d + 1, reach + 1):
                value -= factor[i, e] * factor[i - d, e - d]
            value /= factor[i - d, 0]
            factor[i, d] = value
            pivot -= value * value
        factor[i, 0] = math.sqrt(pivot) if pivot > 0 else np.nan


@_part
def _forwards(factor: np.ndarray, x: np.ndarray) -> None:
    size, width, columns = factor.shape[0], factor.shape[1] - 1, x.shape[1]
    for i in range(size):
        for d in range(1, min(width, i) + 1):
            weight = factor[i, d]
            for c in range(columns):
                x[i, c] -= weight * x[i - d, c]
        scale = 1 / factor[i, 0]
        for c in range(columns):
            x[i, c] *= scale


@_part
def _backwards(factor: np.ndarray, x: np.ndarray) -> None:
    size, width, columns = factor.shape[0], factor.shape[1] - 1, x.shape[1]
    for i in range(size - 1, -1, -1):
        for d in range(1, min(width, size - 1 - i) + 1):
            weight = factor[i + d, d]
            for c in range(columns):
                x[i, c] -= weight * x[i + d, c]
        scale = 1 / factor[i, 0]
        for c in range(columns):
            x[i, c] *= scale


@_kernel
def _solve_batch(band: np.ndarray, x: np.ndarray) -> None:
    factor = np.zeros(band.shape[1:], band.dtype)
    for item in range(band.shape[0]):
        _factorise(band[item], factor)
        _forwards(factor, x[item])
        _backwards(factor, x[item])


@_kernel
def _substitute_batch(factor: np.ndarray, x: np.ndarray, transposed: bool) -> None:
    for item in range(factor.shape[0]):
        if transposed:
            _backwards(factor[item], x[item])
        else:
            _forwards(factor[item], x[item])


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def solve(band: Tensor, right: Tensor) -> Tensor:
    """`_reference.solve` on the CPU: one factor at a time is kept."""
    x = _copy(right)
    _solve_batch(_array(band), x.numpy())
    return x


def substitute(factor: Tensor, right: Tensor, *, transposed: bool) -> Tensor:
    """`pullback.trajectory.kernels.banded._reference.substitute` on the CPU."""
    x = _copy(right)
    _substitute_batch(_array(factor), x.numpy(), transposed)
    return x
