"""Points: five bytes for one tensor at one moment, enough to draw and to diagnose.

.. code-block:: text

    bytes 0-1  log2 of the scale (root mean square), signed, in steps of 1/256
    byte  2    log2(max |x| / scale), in steps of 1/8, so up to 2^31.9
    byte  3    the share of zeros, in 255ths; neither end is reached by rounding
    byte  4    flags: 1 NaN, 2 +inf, 4 -inf, 8 nothing finite, 16 every finite element is zero

A thousand tensors with their gradients over a hundred steps are a million bytes.
"""

from dataclasses import dataclass

import numpy as np

from pullback.tracking._layout import (
    COUNT,
    M2,
    MAX_ABS,
    MEAN,
    NANS,
    NEGATIVE_INFINITIES,
    POSITIVE_INFINITIES,
    ZEROS,
)
from pullback.tracking._statistics import finite_counts

__all__ = ["BAD", "EMPTY", "NULL", "POINT_BYTES", "Points", "decode_points", "encode_points"]

POINT_BYTES = 5
NAN_SEEN, POSITIVE_SEEN, NEGATIVE_SEEN, EMPTY, NULL = 1, 2, 4, 8, 16
BAD = NAN_SEEN | POSITIVE_SEEN | NEGATIVE_SEEN


@dataclass(frozen=True, slots=True)
class Points:
    """Decoded points of one tensor, each an array with one element a moment.

    Arguments:
        steps: the step of training.
        microbatches: the microbatch within it.
        scale: log2 of the root mean square; NaN where nothing is finite, ``-inf`` for all zeros.
        peak: log2 of the largest ``|x|``, likewise.
        zeros: the share of zeros among all elements.
        flags: see the module.
    """

    steps: np.ndarray
    microbatches: np.ndarray
    scale: np.ndarray
    peak: np.ndarray
    zeros: np.ndarray
    flags: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)


def encode_points(rows: np.ndarray) -> np.ndarray:
    """Five bytes for each row of statistics: uint8 of shape ``[n, 5]``."""
    finite = finite_counts(rows)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        deviation = np.sqrt(rows[:, M2] / np.maximum(finite, 1.0))
        scale = np.hypot(rows[:, MEAN], deviation)
        level = np.log2(scale)
        above = np.log2(rows[:, MAX_ABS]) - level
    empty, null = finite == 0, (finite > 0) & (rows[:, MAX_ABS] == 0)
    drawn = ~(empty | null)
    points = np.zeros((len(rows), POINT_BYTES), np.uint8)
    level = np.clip(np.round(np.where(drawn, level, 0.0) * 256), -32767, 32767).astype("<i2")
    points[:, :2] = level[:, None].view(np.uint8)
    points[:, 2] = np.clip(np.round(np.where(drawn, above, 0.0) * 8), 0, 255)
    share = rows[:, ZEROS] / np.maximum(rows[:, COUNT], 1.0)
    rounded = np.round(share * 255)
    rounded = np.where(share > 0, np.maximum(rounded, 1), rounded)
    points[:, 3] = np.where(share < 1, np.minimum(rounded, 254), rounded)
    points[:, 4] = (
        (rows[:, NANS] > 0) * NAN_SEEN
        + (rows[:, POSITIVE_INFINITIES] > 0) * POSITIVE_SEEN
        + (rows[:, NEGATIVE_INFINITIES] > 0) * NEGATIVE_SEEN
        + empty * EMPTY
        + null * NULL
    )
    return points


def decode_points(steps: np.ndarray, microbatches: np.ndarray, points: np.ndarray) -> Points:
    """Read what `encode_points` wrote, with the moments it was written at."""
    flags = points[:, 4]
    level = np.ascontiguousarray(points[:, :2]).view("<i2")[:, 0] / 256.0
    peak = level + points[:, 2] / 8.0
    for array in (level, peak):
        array[(flags & NULL) > 0] = -np.inf
        array[(flags & EMPTY) > 0] = np.nan
    return Points(steps, microbatches, level, peak, points[:, 3] / 255.0, flags)
