"""The statistics of a contiguous float32 or float64 array in one visit to memory (numba).

The array is read in blocks that fit the first-level cache. Of each block the extremes of the bit
patterns are taken first; they tell whether it holds infinities, NaN or subnormals. A block without
them (zeros are welcome) goes the fast way: vectorised sums in float64 and a histogram of the
exponent field alone. Any other block goes the careful way, one element at a time.

Blocks are merged by the pairwise formula of Chan, Golub and LeVeque, "Updating formulae and a
pairwise algorithm for computing sample variances" (1979).
"""

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from pullback.tracking._layout import (
    ABOVE,
    BELOW,
    COUNT,
    FIRST_BIN,
    M2,
    MAX_ABS,
    MEAN,
    MEAN_ABS,
    MIN_ABS,
    NANS,
    NEGATIVE_INFINITIES,
    POSITIVE_INFINITIES,
    ZEROS,
)

__all__ = ["measure_cpu"]

BLOCK = 4096
TABLES = 8  # histograms side by side: a run of equal exponents must not wait for its own store
# Reassociation lets sums be vectorised. NaN and infinity never reach these loops.
FAST = {"reassoc", "contract", "nsz"}


def _compile(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile with numba, kept on disk where the machine allows it."""
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no writable place for a cache: compile anew in each process
        return numba.njit(**options)(function)


def _sums(values: np.ndarray) -> tuple[float, float]:
    total = 0.0
    size = 0.0
    for i in range(values.size):
        value = np.float64(values[i])
        total += value
        size += abs(value)
    return total, size


def _squares(values: np.ndarray, mean: float) -> float:
    total = 0.0
    for i in range(values.size):
        distance = np.float64(values[i]) - mean
        total += distance * distance
    return total


def _extremes(bits: np.ndarray) -> tuple[np.uint32, np.uint32]:
    # Twice the pattern drops the sign; minus one sends zero to the top, out of the minimum's way.
    low = np.uint32(0xFFFFFFFF)
    high = np.uint32(0)
    for i in range(bits.size):
        twice = np.uint32(bits[i] << np.uint32(1))
        less = np.uint32(twice - np.uint32(1))
        low = less if less < low else low
        high = twice if twice > high else high
    return low, high


def _fields(pairs: np.ndarray, table: np.ndarray) -> None:
    # Two float32 a load; the bounds below are what lets the loop run at one element a cycle.
    mask = np.uint64(255)
    low = np.uint64(23)
    high = np.uint64(55)
    whole = pairs.size // 4 * 4
    for i in range(0, whole, 4):
        table[0, (pairs[i] >> low) & mask] += np.int32(1)
        table[1, (pairs[i] >> high) & mask] += np.int32(1)
        table[2, (pairs[i + 1] >> low) & mask] += np.int32(1)
        table[3, (pairs[i + 1] >> high) & mask] += np.int32(1)
        table[4, (pairs[i + 2] >> low) & mask] += np.int32(1)
        table[5, (pairs[i + 2] >> high) & mask] += np.int32(1)
        table[6, (pairs[i + 3] >> low) & mask] += np.int32(1)
        table[7, (pairs[i + 3] >> high) & mask] += np.int32(1)
    for i in range(whole, pairs.size):
        table[0, (pairs[i] >> low) & mask] += np.int32(1)
        table[1, (pairs[i] >> high) & mask] += np.int32(1)


def _merge(row: np.ndarray, n: float, mean: float, m2: float, size: float) -> None:
    before = (
        row[COUNT] - row[NANS] - row[POSITIVE_INFINITIES] - row[NEGATIVE_INFINITIES]
    )  # finite so far
    if n > 0:
        together = before + n
        distance = mean - row[MEAN]
        row[MEAN] += distance * (n / together)
        row[M2] += m2 + distance * distance * (before * n / together)
        row[MEAN_ABS] += (size / n - row[MEAN_ABS]) * (n / together)


_sums = _compile(_sums, fastmath=FAST)
_squares = _compile(_squares, fastmath=FAST)
_extremes = _compile(_extremes)
_fields = _compile(_fields)
_merge = _compile(_merge)


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
                row[ZEROS] += 1
            else:
                exponent = math.frexp(magnitude)[1] - 1
                row[FIRST_BIN + min(max(exponent, BELOW), ABOVE) - BELOW] += 1
                row[MAX_ABS] = max(row[MAX_ABS], magnitude)
                row[MIN_ABS] = min(row[MIN_ABS], magnitude)
    mean = total / n if n > 0 else 0.0
    m2 = 0.0
    for i in range(values.size):
        value = np.float64(values[i]) * factor
        if math.isfinite(value):
            m2 += (value - mean) * (value - mean)
    _merge(row, n, mean, m2, size)
    row[COUNT] += values.size
    row[NANS] += nans
    row[POSITIVE_INFINITIES] += positive
    row[NEGATIVE_INFINITIES] += negative


_careful = _compile(_careful, error_model="numpy")


def _quick(values: np.ndarray, low: np.uint32, high: np.uint32, row: np.ndarray) -> None:
    n = float(values.size)
    total, size = _sums(values)
    mean = total / n
    _merge(row, n, mean, _squares(values, mean), size)
    row[COUNT] += n
    extreme = np.empty(2, np.uint32)
    extreme[0] = np.uint32(low + 1) >> 1
    extreme[1] = high >> 1
    found = extreme.view(np.float32)
    if high > 0:
        row[MIN_ABS] = min(row[MIN_ABS], np.float64(found[0]))
        row[MAX_ABS] = max(row[MAX_ABS], np.float64(found[1]))


_quick = _compile(_quick)


def _fold(table: np.ndarray, row: np.ndarray) -> None:
    for field in range(255):
        total = 0
        for i in range(TABLES):
            total += table[i, field]
            table[i, field] = 0
        if total > 0 and field == 0:
            row[ZEROS] += total
        elif total > 0:
            row[FIRST_BIN + field - 127 - BELOW] += total


_fold = _compile(_fold)


def _nulls(bits: np.ndarray) -> np.uint32:
    count = np.uint32(0)
    for i in range(bits.size):
        count += np.uint32(1) if np.uint32(bits[i] << np.uint32(1)) == 0 else np.uint32(0)
    return count


_nulls = _compile(_nulls)


def _measure32(values: np.ndarray, row: np.ndarray, exponents: bool) -> None:
    bits = values.view(np.uint32)
    table = np.zeros((TABLES, 256), np.int32)
    for start in range(0, values.size, BLOCK):
        block = values[start : start + BLOCK]
        pattern = bits[start : start + BLOCK]
        low, high = _extremes(pattern)
        # An exponent field of ones is an infinity or NaN; one of zeros, a subnormal.
        if high >= np.uint32(0xFF000000) or low < np.uint32(0x00FFFFFF):
            _careful(block, 1.0, row)
            continue
        _quick(block, low, high, row)
        if not exponents:
            row[ZEROS] += _nulls(pattern)
            continue
        even = block.size // 2 * 2
        _fields(pattern[:even].view(np.uint64), table)
        if even < block.size:
            table[0, (pattern[even] >> np.uint32(23)) & np.uint32(255)] += np.int32(1)
        if (start // BLOCK + 1) % 65536 == 0:
            _fold(table, row)  # long before an int32 could run over
    _fold(table, row)


_measure32 = _compile(_measure32)


def _measure_any(values: np.ndarray, factor: float, row: np.ndarray) -> None:
    for start in range(0, values.size, BLOCK):
        _careful(values[start : start + BLOCK], factor, row)


_measure_any = _compile(_measure_any)


def measure_cpu(
    values: np.ndarray, row: np.ndarray, factor: float = 1.0, exponents: bool = True
) -> None:
    """Write every statistic of ``factor * values`` into a row.

    Arguments:
        values: a contiguous array of one dimension, float32 or float64.
        row: `pullback.tracking._layout.WIDTH` float64 numbers, overwritten.
        factor: a multiplier; the fast way takes powers of two, exactly.
        exponents: whether the histogram is wanted; without it the bins mean nothing.

    Example:
        >>> row = np.empty(289)
        >>> measure_cpu(np.array([1.0, 3.0], np.float32), row)
        >>> row[:3].tolist()
        [2.0, 2.0, 2.0]
    """
    row[:] = 0.0
    row[MIN_ABS] = math.inf
    if values.dtype != np.float32:
        _measure_any(values, factor, row)
        return
    if factor == 1.0:
        _measure32(values, row, exponents)
        return
    mantissa, exponent = math.frexp(factor)
    if mantissa != 0.5:
        _measure_any(values, factor, row)
        return
    _measure32(values, row, exponents)
    _shift(row, factor, exponent - 1)


def _shift(row: np.ndarray, factor: float, octaves: int) -> None:
    """Multiply the measured values by a power of two after the fact."""
    row[MEAN] *= factor
    row[M2] *= factor * factor
    row[MEAN_ABS] *= factor
    row[MAX_ABS] *= factor
    row[MIN_ABS] *= factor
    filled = np.flatnonzero(row[FIRST_BIN:])
    counts = row[FIRST_BIN:][filled].copy()
    row[FIRST_BIN:] = 0.0
    moved = np.clip(filled + octaves, 0, ABOVE - BELOW)
    np.add.at(row, FIRST_BIN + moved, counts)
