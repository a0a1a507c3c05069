"""The ranges of the number formats that a report shades, in powers of two."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pullback.tracking.formats import NumberFormat
from pullback.tracking.formats._number_format import FORMATS

__all__ = ["RANGES", "Range", "share_outside"]


@dataclass(frozen=True, slots=True)
class Range:
    """What a format reaches.

    Arguments:
        name: its name.
        tiny: log2 of half its smallest subnormal; at and below that, rounding gives zero.
        normal: log2 of its smallest normal number.
        top: log2 of the magnitude from which on rounding overflows.
    """

    name: str
    tiny: float
    normal: float
    top: float

    @classmethod
    def of(cls, known: NumberFormat) -> "Range":
        """The range of a number format."""
        return cls(
            known.name,
            math.log2(known.smallest) - 1.0,
            math.log2(known.smallest_normal),
            math.log2(known.overflow_bound),
        )


RANGES = tuple(Range.of(known) for known in FORMATS)


def share_outside(exponents: Mapping[int, int], reach: Range) -> float:
    """The share of nonzero values that a format flushes to zero or lets overflow, at least.

    The exponent that a border falls into counts as inside; `advise_from_exponents` gives bounds
    for it and the best scale, and takes a thousand times as long.
    """
    total = sum(exponents.values())
    lost = sum(
        count
        for exponent, count in exponents.items()
        if exponent + 1 <= reach.tiny or exponent >= reach.top
    )
    return lost / total if total else 0.0
