"""Points: four bytes for one tensor at one moment, enough to draw and to diagnose.

.. code-block:: text

    bytes 0-1  log2 of the scale (root mean square), signed, counted from -11: in steps of 1/200 as
               far as 139 octaves from there, which float32 does not leave, and of 1/5 beyond;
               -32768 if every finite element is zero, -32767 if nothing is finite
    byte  2    log2(max |x| / scale), in steps of 1/8, so up to 2^31.9
    byte  3    the share of zeros, in 248ths; neither end is reached by rounding. Or, from 249 on,
               248 and what was not finite: 1 NaN, 2 +inf, 4 -inf

A thousand tensors with their gradients over a hundred steps are 0.8 million bytes. Of a moment with
elements that are not finite the share of zeros is not kept: it says nothing there.
"""

from dataclasses import dataclass, fields

import numpy as np

from pullback.tracking.measure import _layout as layout
from pullback.tracking.measure._statistics import finite_counts

__all__ = [
    "ALL_FLAGS",
    "BAD",
    "Points",
    "decode_points",
    "encode_points",
    "pack_points",
]

POINT_BYTES = 4
# Half a step of 1/200 octave is .17 % of a scale, half a step of 1/5 is 7 %.
_LEVELS = np.array([-1125.0, -150.0, 128.0, 1103.0])
_CODES = np.array([-32675.0, -27800.0, 27800.0, 32675.0])
ALL_ZERO, NONE_FINITE = -32768, -32767
WHOLE = 248  # a share of one
NAN_SEEN, POSITIVE_SEEN, NEGATIVE_SEEN, EMPTY, NULL = 1, 2, 4, 8, 16
BAD = NAN_SEEN | POSITIVE_SEEN | NEGATIVE_SEEN
ALL_FLAGS = BAD | EMPTY | NULL


@dataclass(frozen=True, slots=True)
class Points:
    """Decoded points of one tensor, each an array with one element a moment.

    Arguments:
        steps: the step of training.
        microbatches: the microbatch within it.
        scale: log2 of the root mean square; NaN where nothing is finite, ``-inf`` for all zeros.
        peak: log2 of the largest ``|x|``, likewise.
        zeros: the share of zeros among all elements; 0 where an element was not finite.
        flags: 1 NaN, 2 +inf, 4 -inf, 8 nothing finite, 16 every finite element is zero.
    """

    steps: np.ndarray
    microbatches: np.ndarray
    scale: np.ndarray
    peak: np.ndarray
    zeros: np.ndarray
    flags: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, chosen: np.ndarray) -> "Points":
        return Points(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def moments(self) -> list[tuple[int, int]]:
        """The step and the microbatch of each."""
        return list(zip(self.steps.tolist(), self.microbatches.tolist(), strict=True))


def encode_points(rows: np.ndarray) -> np.ndarray:
    """Four bytes for each row of statistics: uint8 of shape ``[n, 4]``."""
    finite = finite_counts(rows)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        deviation = np.sqrt(rows[:, layout.M2] / np.maximum(finite, 1.0))
        scale = np.log2(np.hypot(rows[:, layout.MEAN], deviation))
        peak = np.log2(rows[:, layout.MAX_ABS])
    flags = (
        (rows[:, layout.NANS] > 0) * NAN_SEEN
        + (rows[:, layout.POSITIVE_INFINITIES] > 0) * POSITIVE_SEEN
        + (rows[:, layout.NEGATIVE_INFINITIES] > 0) * NEGATIVE_SEEN
        + (finite == 0) * EMPTY
        + ((finite > 0) & (rows[:, layout.MAX_ABS] == 0)) * NULL
    )
    return pack_points(scale, peak, rows[:, layout.ZEROS] / np.maximum(rows[:, 0], 1.0), flags)


def pack_points(
    scale: np.ndarray, peak: np.ndarray, zeros: np.ndarray, flags: np.ndarray
) -> np.ndarray:
    """The bytes of what `Points` holds of some moments; what was packed before is so again."""
    null = (flags & NULL) > 0
    drawn = ~(null | ((flags & EMPTY) > 0)) & np.isfinite(scale) & np.isfinite(peak)
    level, peak = np.where(drawn, scale, 0.0), np.where(drawn, peak, 0.0)
    stored = np.round(np.interp(level, _LEVELS, _CODES))
    stored = np.where(null, ALL_ZERO, np.where(drawn, stored, NONE_FINITE)).astype("<i2")
    points = np.zeros((len(scale), POINT_BYTES), np.uint8)
    points[:, :2] = stored[:, None].view(np.uint8)
    points[:, 2] = np.clip(np.round((peak - level) * 8), 0, 255)
    share = np.round(zeros * WHOLE)
    share = np.where(zeros > 0, np.maximum(share, 1), share)
    share = np.where(zeros < 1, np.minimum(share, WHOLE - 1), share)
    bad = flags & BAD
    points[:, 3] = np.where(bad > 0, WHOLE + bad, np.clip(share, 0, WHOLE))
    return points


def decode_points(steps: np.ndarray, microbatches: np.ndarray, points: np.ndarray) -> Points:
    """Read what `encode_points` wrote, with the moments it was written at."""
    stored = np.ascontiguousarray(points[:, :2]).view("<i2")[:, 0]
    null, empty = stored == ALL_ZERO, stored == NONE_FINITE
    level = np.interp(stored, _CODES, _LEVELS)
    peak = level + points[:, 2] / 8.0
    for array in (level, peak):
        array[null] = -np.inf
        array[empty] = np.nan
    bad = np.maximum(points[:, 3], WHOLE) - WHOLE
    flags = (bad + empty * EMPTY + null * NULL).astype(np.uint8)
    zeros = np.where(bad > 0, 0.0, points[:, 3] / WHOLE)
    return Points(steps, microbatches, level, peak, zeros, flags)
