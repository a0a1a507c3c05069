"""Find and count the exponents of a block of float32 numbers (numba).

A histogram kept by increments in memory takes a cycle for each element, whatever the machine. Here
the exponent fields of a block, a byte each, are compared with one exponent after the other, from
the highest down, many bytes in an instruction: some twenty exponents, as most blocks have, take a
sixth of the time.
"""

import math

import numpy as np

from pullback.internal.kernels._cpu import compile_kernel
from pullback.internal.kernels.vectors._cpu import count_bytes, pointer_to
from pullback.tracking.measure._layout import BELOW, FIRST_BIN

__all__ = ["BLOCK", "find_fields", "histogram", "subnormals"]

BLOCK = 4096
QUARTER = BLOCK // 4


@compile_kernel()
def find_fields(bits: np.ndarray, fields: np.ndarray) -> tuple[np.uint32, np.uint32]:
    """Write the exponent fields of a block; return the extremes of its patterns.

    Of the extremes, the sign is dropped by doubling, and the least is one less than it is, so that
    zero goes to the top, out of the minimum's way. In which order the fields lie does not matter:
    those of four numbers are put together in one word, as vectors of words do it.
    """
    words = fields.view(np.uint32)
    low = np.uint32(0xFFFFFFFF)
    high = np.uint32(0)
    one = np.uint32(1)
    for i in range(QUARTER):
        first = np.uint32(bits[i] << one)
        second = np.uint32(bits[i + QUARTER] << one)
        third = np.uint32(bits[i + 2 * QUARTER] << one)
        fourth = np.uint32(bits[i + 3 * QUARTER] << one)
        high = max(high, first, second, third, fourth)
        low = min(low, np.uint32(first - one), np.uint32(second - one))
        low = min(low, np.uint32(third - one), np.uint32(fourth - one))
        word = (first >> np.uint32(24)) | ((second >> np.uint32(16)) & np.uint32(0xFF00))
        word |= (third >> np.uint32(8)) & np.uint32(0xFF0000)
        words[i] = word | (fourth & np.uint32(0xFF000000))
    return low, high


@compile_kernel()
def _highest_below(fields: np.ndarray, bound: int) -> int:
    """The highest field below a bound; 0 if there is none."""
    highest = np.uint8(0)
    for i in range(BLOCK):
        # Wraps, so that all below the bound are the largest.
        below = np.uint8(fields[i] - np.uint8(bound))
        highest = below if below > highest else highest
    found = np.uint8(highest + np.uint8(bound))
    return int(found) if found < bound else 0


@compile_kernel()
def histogram(fields: np.ndarray, highest: int, row: np.ndarray, exponents: bool) -> int:
    """Count the exponent fields of a block, from the highest down, if all are wanted.

    Returns how many are zero: those of zeros and of subnormal numbers.
    """
    pointer = pointer_to(fields)
    zeros = count_bytes(pointer, BLOCK, np.uint8(0))
    left = BLOCK - zeros if exponents else 0
    field = highest
    while left > 0:
        count = count_bytes(pointer, BLOCK, np.uint8(field))
        row[FIRST_BIN + field - 127 - BELOW] += count
        left -= count
        # An outlier or two may be far below: go on at the next field that occurs.
        field = field - 1 if count > 0 else _highest_below(fields, field)
    return zeros


@compile_kernel()
def subnormals(bits: np.ndarray, row: np.ndarray) -> float:
    """Count the exponents of subnormal numbers, whose field is that of zero."""
    counted = 0.0
    for i in range(bits.size):
        magnitude = bits[i] & np.uint32(0x7FFFFFFF)
        if np.uint32(magnitude - np.uint32(1)) < np.uint32(0x007FFFFF):
            exponent = math.frexp(float(magnitude))[1] - 1 - 149
            row[FIRST_BIN + exponent - BELOW] += 1
            counted += 1
    return counted
