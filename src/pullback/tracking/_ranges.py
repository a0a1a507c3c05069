"""The ranges of the number formats that a report shades, in powers of two."""

from dataclasses import dataclass

__all__ = ["RANGES", "Range", "share_outside"]


@dataclass(frozen=True, slots=True)
class Range:
    """What a format reaches.

    Arguments:
        name: its short name.
        label: how a report calls it.
        tiny: log2 of half its smallest subnormal; below that, rounding gives zero.
        normal: log2 of its smallest normal number.
        top: log2 of what rounds to more than its largest number.
    """

    name: str
    label: str
    tiny: float
    normal: float
    top: float


# Largest number of significand 2 - 2^-m rounds up from 2 - 2^-(m+1) on; for E4M3 (OCP) the
# topmost code is NaN, so that 448 = 1.75 * 2^8 is the largest and 464 the border.
RANGES = (
    Range("float16", "float16", -25.0, -14.0, 15.99965),
    Range("bfloat16", "bfloat16", -134.0, -126.0, 127.99718),
    Range("e4m3", "float8 E4M3", -10.0, -6.0, 8.85798),
    Range("e5m2", "float8 E5M2", -17.0, -14.0, 15.90689),
    Range("e2m1", "float4 E2M1", -2.0, 0.0, 2.80735),
)


def share_outside(exponents: dict[int, int], reach: Range) -> tuple[float, float]:
    """The shares of nonzero values that a format flushes to zero and lets overflow.

    A histogram of exponents decides this for all but the one exponent that a border falls into,
    which is counted as inside.

    Arguments:
        exponents: how many values have each exponent.
        reach: the format.
    """
    total = sum(exponents.values())
    if total == 0:
        return 0.0, 0.0
    under = sum(count for exponent, count in exponents.items() if exponent + 1 <= reach.tiny)
    over = sum(count for exponent, count in exponents.items() if exponent >= reach.top)
    return under / total, over / total
