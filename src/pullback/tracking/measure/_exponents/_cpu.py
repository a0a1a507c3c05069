"""Count the exponents of a block of float32 numbers, bit by bit (numba).

A histogram kept by increments in memory takes a cycle for each element, whatever the machine. Here
an exponent is counted by bits instead: each field's distance below the highest one fits five bits
(almost always, see `histogram`); equal bits of all elements are brought together in *planes*; and
how many elements have one value is then a conjunction of five words and a population count for
each 64 of them, which compilers turn into the widest vectors that there are.
"""

import math

import numpy as np

from pullback.internal.kernels._cpu import compile_kernel
from pullback.tracking.measure._layout import BELOW, FIRST_BIN

__all__ = ["BLOCK", "PLANES", "WORDS", "histogram", "subnormals"]

BLOCK = 4096
WORDS = BLOCK // 64  # of 64 bits, one for each element
WINDOW = 31  # octaves that five bits tell apart, and one pattern left over for all others
PLANES = 5


@compile_kernel()
def _window(fields: np.ndarray, top: np.uint8, distances: np.ndarray) -> None:
    """How far each exponent field lies below the top, or 31 if out of the window."""
    for i in range(BLOCK):
        # That of a field above the top wraps to more than the top itself, which is never asked for.
        distance = np.uint8(top - fields[i])
        distances[i] = distance if distance < np.uint8(WINDOW) else np.uint8(WINDOW)


@compile_kernel()
def _planes(words: np.ndarray, planes: np.ndarray) -> None:
    """Bring bit ``k`` of each of 4096 bytes together in 64 words, for each ``k`` below 5.

    Of eight words the ``r``-th is rotated by ``r`` bits, so that its bits ``k`` lie beside those
    of the seven others; each plane is rotated back by ``k``, so that the bits of one element lie
    in one place in all of them. Where that is does not matter: only counts are wanted.
    """
    # Long: the rows of a transposition, written out so that the compiler makes vectors of them.
    bit0 = np.uint64(0x0101010101010101)
    bit1 = np.uint64(0x0202020202020202)
    bit2 = np.uint64(0x0404040404040404)
    bit3 = np.uint64(0x0808080808080808)
    bit4 = np.uint64(0x1010101010101010)
    bit5 = np.uint64(0x2020202020202020)
    bit6 = np.uint64(0x4040404040404040)
    bit7 = np.uint64(0x8080808080808080)
    for j in range(WORDS):
        word0 = words[j]
        word1 = words[j + WORDS]
        word1 = (word1 << np.uint64(1)) | (word1 >> np.uint64(63))
        word2 = words[j + 2 * WORDS]
        word2 = (word2 << np.uint64(2)) | (word2 >> np.uint64(62))
        word3 = words[j + 3 * WORDS]
        word3 = (word3 << np.uint64(3)) | (word3 >> np.uint64(61))
        word4 = words[j + 4 * WORDS]
        word4 = (word4 << np.uint64(4)) | (word4 >> np.uint64(60))
        word5 = words[j + 5 * WORDS]
        word5 = (word5 << np.uint64(5)) | (word5 >> np.uint64(59))
        word6 = words[j + 6 * WORDS]
        word6 = (word6 << np.uint64(6)) | (word6 >> np.uint64(58))
        word7 = words[j + 7 * WORDS]
        word7 = (word7 << np.uint64(7)) | (word7 >> np.uint64(57))
        low = (word0 & bit0) | (word1 & bit1) | (word2 & bit2) | (word3 & bit3)
        high = (word4 & bit4) | (word5 & bit5) | (word6 & bit6) | (word7 & bit7)
        planes[j] = low | high
        low = (word0 & bit1) | (word1 & bit2) | (word2 & bit3) | (word3 & bit4)
        high = (word4 & bit5) | (word5 & bit6) | (word6 & bit7) | (word7 & bit0)
        high |= low
        planes[j + WORDS] = (high >> np.uint64(1)) | (high << np.uint64(63))
        low = (word0 & bit2) | (word1 & bit3) | (word2 & bit4) | (word3 & bit5)
        high = (word4 & bit6) | (word5 & bit7) | (word6 & bit0) | (word7 & bit1)
        high |= low
        planes[j + 2 * WORDS] = (high >> np.uint64(2)) | (high << np.uint64(62))
        low = (word0 & bit3) | (word1 & bit4) | (word2 & bit5) | (word3 & bit6)
        high = (word4 & bit7) | (word5 & bit0) | (word6 & bit1) | (word7 & bit2)
        high |= low
        planes[j + 3 * WORDS] = (high >> np.uint64(3)) | (high << np.uint64(61))
        low = (word0 & bit4) | (word1 & bit5) | (word2 & bit6) | (word3 & bit7)
        high = (word4 & bit0) | (word5 & bit1) | (word6 & bit2) | (word7 & bit3)
        high |= low
        planes[j + 4 * WORDS] = (high >> np.uint64(4)) | (high << np.uint64(60))


@compile_kernel()
def _matches(planes: np.ndarray, value: int | np.integer) -> np.uint64:
    """How many of the bytes have this value, a number of five bits."""
    whole = np.uint64(0xFFFFFFFFFFFFFFFF)
    flip0 = whole if value & 1 == 0 else np.uint64(0)
    flip1 = whole if value & 2 == 0 else np.uint64(0)
    flip2 = whole if value & 4 == 0 else np.uint64(0)
    flip3 = whole if value & 8 == 0 else np.uint64(0)
    flip4 = whole if value & 16 == 0 else np.uint64(0)
    count = np.uint64(0)
    for j in range(WORDS):
        same = planes[j] ^ flip0
        same &= planes[j + WORDS] ^ flip1
        same &= planes[j + 2 * WORDS] ^ flip2
        same &= planes[j + 3 * WORDS] ^ flip3
        same &= planes[j + 4 * WORDS] ^ flip4
        # The compiler knows these lines as a population count.
        same -= (same >> np.uint64(1)) & np.uint64(0x5555555555555555)
        pairs = same & np.uint64(0x3333333333333333)
        same = pairs + ((same >> np.uint64(2)) & np.uint64(0x3333333333333333))
        same = (same + (same >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
        count += (same * np.uint64(0x0101010101010101)) >> np.uint64(56)
    return count


@compile_kernel()
def _highest(fields: np.ndarray, bound: np.uint8) -> np.uint8:
    """The highest exponent field below a bound; 0 if there is none."""
    highest = np.uint8(0)
    for i in range(BLOCK):
        below = np.uint8(fields[i] - bound)  # wraps, so that all below the bound are the largest
        highest = below if below > highest else highest
    found = np.uint8(highest + bound)
    return found if found < bound else np.uint8(0)


@compile_kernel()
def histogram(
    fields: np.ndarray, highest: int, distances: np.ndarray, planes: np.ndarray, row: np.ndarray
) -> float:
    """Count the exponent fields of a block from the highest down; return how many were counted.

    Most blocks lie within one window of 31 octaves; each further window starts at the highest
    field that is left.
    """
    words = distances.view(np.uint64)
    counted = 0.0
    top = highest
    while top > 0:
        _window(fields, np.uint8(top), distances)
        _planes(words, planes)
        bottom = max(1, top - WINDOW + 1)
        others = _matches(planes, WINDOW)
        left = BLOCK - np.int64(others)
        field = top
        while left > 0 and field >= bottom:
            count = np.int64(_matches(planes, top - field))
            row[FIRST_BIN + field - 127 - BELOW] += count
            counted += count
            left -= count
            field -= 1
        # An outlier or two may be far below: go on at the next field that occurs.
        top = np.int64(_highest(fields, np.uint8(bottom))) if others > 0 else 0
    return counted


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
