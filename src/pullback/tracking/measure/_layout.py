"""The layout of one row of statistics, as every kernel writes it and every reader reads it.

A row is `WIDTH` float64 numbers: ten scalars, then the histogram of exponents. Bin ``i`` counts the
finite nonzero values whose exponent ``floor(log2 |x|)`` is ``i + BELOW``; the first and the last
bin also take everything beyond them. The bins cover each exponent of float32 and of bfloat16, down
to the smallest subnormal, one by one.
"""

from typing import Literal

__all__ = [
    "ABOVE",
    "BELOW",
    "BINS",
    "COUNT",
    "FIRST_BIN",
    "M2",
    "MAX_ABS",
    "MEAN",
    "MEAN_ABS",
    "MIN_ABS",
    "NANS",
    "NEGATIVE_INFINITIES",
    "POSITIVE_INFINITIES",
    "WIDTH",
    "ZEROS",
    "Direction",
]

Direction = Literal["forward", "backward", "tangent"]

BELOW = -150  # the bin of every nonzero |x| < 2^-149, which only float64 can hold
ABOVE = 128  # the bin of every finite |x| >= 2^128, likewise
BINS = ABOVE - BELOW + 1

COUNT = 0  # all elements, finite or not
MEAN = 1  # of the finite elements, as are the four below
M2 = 2  # sum of squared distances from the mean
MEAN_ABS = 3
MAX_ABS = 4  # 0 if there is no finite element
MIN_ABS = 5  # of the nonzero ones; infinity if there is none
ZEROS = 6
NANS = 7
POSITIVE_INFINITIES = 8
NEGATIVE_INFINITIES = 9
FIRST_BIN = 10
WIDTH = FIRST_BIN + BINS
