"""The statistics of a contiguous float32 or float64 array in one visit to memory (numba).

The array is read in blocks that fit the first-level cache. The extremes of a block's bit patterns
tell whether it holds infinities, NaN or subnormal numbers. A block without them goes the fast way:
vectorised sums in float64, and a count of the bytes that are its exponent fields. Any other goes
the careful way, element by element.

Blocks are merged by the pairwise formula of Chan, Golub and LeVeque, "Updating formulae and a
pairwise algorithm for computing sample variances" (1979).
"""

import math
from typing import Any

import numpy as np
from numba import carray
from torch import Tensor

from pullback.internal.kernels._cpu import compile_kernel
from pullback.internal.kernels._threads import ZEROS as ITEMS
from pullback.internal.kernels.vectors._cpu import count_bytes, pointer_at, pointer_to
from pullback.tracking.measure import _layout as layout

__all__ = ["measure_cpu"]

BLOCK = 4096
# Two passes for the variance where one would lose more than three of float64's sixteen digits.
CANCELLED = 1e-3
# Reassociation lets sums be vectorised. Those of blocks with NaN or infinity are thrown away.
FAST = {"reassoc", "contract", "nsz"}


@compile_kernel(fastmath=FAST)
def _sums(values: np.ndarray) -> tuple[float, float, float]:
    total = 0.0
    size = 0.0
    squares = 0.0
    for i in range(values.size):
        value = np.float64(values[i])
        total += value
        size += abs(value)
        squares += value * value
    return total, size, squares


@compile_kernel(fastmath=FAST)
def _distances(values: np.ndarray, mean: float) -> float:
    total = 0.0
    for i in range(values.size):
        distance = np.float64(values[i]) - mean
        total += distance * distance
    return total


@compile_kernel()
def _merge(row: np.ndarray, n: float, mean: float, m2: float, size: float) -> None:
    before = (
        row[layout.COUNT]
        - row[layout.NANS]
        - row[layout.POSITIVE_INFINITIES]
        - row[layout.NEGATIVE_INFINITIES]
    )  # finite so far
    if n > 0:
        together = before + n
        distance = mean - row[layout.MEAN]
        row[layout.MEAN] += distance * (n / together)
        row[layout.M2] += m2 + distance * distance * (before * n / together)
        row[layout.MEAN_ABS] += (size / n - row[layout.MEAN_ABS]) * (n / together)


@compile_kernel()
def _careful(values: np.ndarray, factor: float, row: np.ndarray) -> None:
    n = 0.0
    total = 0.0
    size = 0.0
    nans = 0.0
    positive = 0.0
    negative = 0.0
    for i in range(values.size):
        value = np.float64(values[i]) * factor
        if math.isnan(value):
            nans += 1
        elif math.isinf(value):
            positive += value > 0
            negative += value < 0
        else:
            n += 1
            total += value
            magnitude = abs(value)
            size += magnitude
            if magnitude == 0.0:
                row[layout.ZEROS] += 1
            else:
                exponent = math.frexp(magnitude)[1] - 1
                row[
                    layout.FIRST_BIN + min(max(exponent, layout.BELOW), layout.ABOVE) - layout.BELOW
                ] += 1
                row[layout.MAX_ABS] = max(row[layout.MAX_ABS], magnitude)
                row[layout.MIN_ABS] = min(row[layout.MIN_ABS], magnitude)
    mean = total / n if n > 0 else 0.0
    m2 = 0.0
    for i in range(values.size):
        value = np.float64(values[i]) * factor
        if math.isfinite(value):
            m2 += (value - mean) * (value - mean)
    _merge(row, n, mean, m2, size)
    row[layout.COUNT] += values.size
    row[layout.NANS] += nans
    row[layout.POSITIVE_INFINITIES] += positive
    row[layout.NEGATIVE_INFINITIES] += negative


@compile_kernel()
def _quick(values: np.ndarray, total: float, size: float, squares: float, row: np.ndarray) -> None:
    n = float(values.size)
    mean = total / n
    m2 = squares - total * mean
    if m2 < CANCELLED * squares:
        m2 = _distances(values, mean)
    _merge(row, n, mean, m2, size)
    row[layout.COUNT] += n


@compile_kernel()
def _numbers(address: int, size: int, item: Any) -> np.ndarray:
    # A number that is an address reaches a kernel in a twentieth of the time that an array takes.
    return carray(pointer_at(address, item), (size,))


@compile_kernel()
def _clear(row: np.ndarray) -> None:
    row[:] = 0.0
    row[layout.MIN_ABS] = math.inf


@compile_kernel()
def _find_fields(bits: np.ndarray, fields: np.ndarray) -> tuple[np.uint32, np.uint32]:
    """Write the exponent field of each pattern; return the extremes of patterns without a sign.

    Signs are dropped by doubling. The least is one less than it is, so that zero goes to the top,
    out of the minimum's way.
    """
    low = np.uint32(0xFFFFFFFF)
    high = np.uint32(0)
    for i in range(BLOCK):
        doubled = np.uint32(bits[i] << np.uint32(1))
        high = max(high, doubled)
        low = min(low, np.uint32(doubled - np.uint32(1)))
        fields[i] = np.uint8(doubled >> np.uint32(24))
    return low, high


@compile_kernel()
def _count_fields(fields: np.ndarray, field: int, row: np.ndarray) -> None:
    """Count exponents from the highest down: many bytes are compared in one instruction.

    A histogram kept by increments waits for memory with each element: a fifth more of a step.
    """
    pointer = pointer_to(fields)
    left = BLOCK - count_bytes(pointer, BLOCK, np.uint8(0))
    row[layout.ZEROS] += BLOCK - left
    while left > 0:
        count = count_bytes(pointer, BLOCK, np.uint8(field))
        row[layout.FIRST_BIN + field - 127 - layout.BELOW] += count
        left -= count
        field -= 1


@compile_kernel()
def _measure32(address: int, size: int, row: np.ndarray) -> None:
    values = _numbers(address, size, np.float32(0))
    _clear(row)
    bits = values.view(np.uint32)
    fields = np.empty(BLOCK, np.uint8)
    padded = np.zeros(BLOCK if size % BLOCK else 0, np.uint32)
    extreme = np.array([0xFFFFFFFF, 0], np.uint32)
    for start in range(0, values.size, BLOCK):
        block = values[start : start + BLOCK]
        pattern = bits[start : start + BLOCK]
        # The sums come first: the most work of all while the block is still on its way from memory.
        total, size, squares = _sums(block)
        if block.size < BLOCK:
            padded[: block.size] = pattern
            pattern = padded
        low, high = _find_fields(pattern, fields)
        # A field of ones is an infinity or NaN, one of zeros zero or a subnormal number.
        if high >= np.uint32(0xFF000000) or low < np.uint32(0x00FFFFFF):
            _careful(block, 1.0, row)
            continue
        extreme[0] = min(extreme[0], low)
        extreme[1] = max(extreme[1], high)
        _quick(block, total, size, squares, row)
        _count_fields(fields, np.int64(high >> np.uint32(24)), row)
        row[layout.ZEROS] -= BLOCK - block.size
    if extreme[1] > 0:
        extreme[0] = np.uint32(extreme[0] + np.uint32(1)) >> np.uint32(1)
        extreme[1] >>= np.uint32(1)
        found = extreme.view(np.float32)
        row[layout.MIN_ABS] = min(row[layout.MIN_ABS], np.float64(found[0]))
        row[layout.MAX_ABS] = max(row[layout.MAX_ABS], np.float64(found[1]))


@compile_kernel()
def _measure_any(address: int, size: int, item: Any, factor: float, row: np.ndarray) -> None:
    values = _numbers(address, size, item)
    _clear(row)
    for start in range(0, values.size, BLOCK):
        _careful(values[start : start + BLOCK], factor, row)


def measure_cpu(values: Tensor, row: np.ndarray, factor: float = 1.0) -> None:
    """Write every statistic of ``factor * values`` into a row.

    Values are float32 or float64 and follow one another in memory. With a factor that is not 1
    no block goes the fast way.
    """
    address, size = values.data_ptr(), values.numel()
    item = ITEMS[values.dtype]
    if factor == 1.0 and item.dtype == np.float32:
        _measure32(address, size, row)
    else:
        _measure_any(address, size, item, factor, row)
