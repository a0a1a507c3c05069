"""Format advice: what a number format loses of some values, and the scale that loses least."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.tracking.formats._round import check_values, parts_of
from pullback.tracking.formats._scaled import Named, find_format
from pullback.tracking.formats._table import FORMATS, NumberFormat

__all__ = ["FormatAdvice", "advise_formats", "advise_from_exponents"]


@dataclass(frozen=True)
class FormatAdvice:
    """What a format does to some values.

    From a tensor the counts are exact; from a histogram of exponents they are bounds, as a
    bin of the histogram may hold values on both sides of a limit.

    Arguments:
        number_format: the format.
        count: how many finite values there were; NaN and infinities are not counted.
        nonzero: how many of them are not zero.
        overflow: how many round beyond the largest value, at least.
        underflow: how many nonzero values round to zero, at least.
        subnormal: how many become subnormal and lose precision, at least.
        overflow_at_most: the upper bound of ``overflow``; equal to it when exact.
        underflow_at_most: the upper bound of ``underflow``.
        best_scale: the power of two that, multiplied to the values, loses fewest of them to
            overflow and underflow, then fewest to subnormal numbers, then is nearest to 1.
        lost_at_best: how many are lost with that scale, at least.
    """

    number_format: NumberFormat
    count: int
    nonzero: int
    overflow: int
    underflow: int
    subnormal: int
    overflow_at_most: int
    underflow_at_most: int
    best_scale: float
    lost_at_best: int

    @property
    def overflow_share(self) -> float:
        """The share of all finite values that overflows; 0 of none."""
        return self.overflow / self.count if self.count else 0.0

    @property
    def underflow_share(self) -> float:
        """The share of all finite values that underflows to zero; 0 of none."""
        return self.underflow / self.count if self.count else 0.0

    @property
    def fits(self) -> bool:
        """Whether nothing at all can be lost to overflow or underflow."""
        return self.overflow_at_most == 0 and self.underflow_at_most == 0


def advise_formats(values: Tensor, formats: Iterable[Named] = FORMATS) -> dict[str, FormatAdvice]:
    """Count exactly what each format would lose of a tensor's values.

    Rounding is to nearest even. The values are sorted once; each count is a search.

    Arguments:
        values: shape (...), any floating or complex dtype; complex values count by parts.
        formats: the formats to advise on, or their names; without scales.

    Returns:
        The advice by the format's name.

    Raises:
        ArgumentError: an unknown format, or one with scales.
        ArgumentTypeError: no floating or complex tensor.
        UnsupportedError: a sparse, nested or packed tensor.

    Example:
        >>> import torch
        >>> from pullback.tracking.formats import advise_formats
        >>> advice = advise_formats(torch.tensor([1e-6, 1.0, 1000.0]))["E4M3"]
        >>> advice.overflow, advice.underflow, advice.best_scale
        (1, 1, 0.25)
    """
    check_values(values, "advise_formats")
    flat = parts_of(values.detach()).reshape(-1).to(torch.float64).abs()
    flat = flat[flat.isfinite()]
    magnitudes = flat[flat > 0].sort().values
    return {
        known.name: _advise_exactly(magnitudes, int(flat.numel()), known)
        for known in _unscaled(formats)
    }


def _unscaled(formats: Iterable[Named]) -> Iterator[NumberFormat]:
    for known in map(find_format, formats):
        if not isinstance(known, NumberFormat):
            raise ArgumentError(
                "Advice on formats finds a scale, and takes no format that has scales.",
                given=str(known),
                mend="Pass the format of its elements, or use signal_to_noise.",
            )
        yield known


def _advise_exactly(magnitudes: Tensor, count: int, known: NumberFormat) -> FormatAdvice:
    ends = torch.frexp(magnitudes[[0, -1]]).exponent - 1 if magnitudes.numel() else ()
    # Beyond 2**-900 and 2**900 the scaled limits would leave float64.
    shifts = [k for k in _candidates([int(end) for end in ends], known) if abs(k) <= 900]
    scales = torch.tensor([2.0**k for k in shifts], dtype=torch.float64, device=magnitudes.device)
    counts = torch.stack(_count(magnitudes, scales, known), 1).tolist()
    return _choose(known, count, magnitudes.numel(), dict(zip(shifts, counts, strict=True)))


def _candidates(ends: Sequence[int], known: NumberFormat) -> range:
    """Every power of two that may be best: those that move some value to a limit."""
    if not ends:
        return range(1)
    low = known.largest_exponent - max(ends) - 1
    high = known.smallest_exponent - min(ends) + 1
    return range(min(low, 0), max(high, 0) + 1)


def _choose(
    known: NumberFormat,
    count: int,
    nonzero: int,
    counted: Mapping[int, Sequence[int]],
    unsure: Sequence[int] = (0, 0),
) -> FormatAdvice:
    """The advice from what each power of two overflows, flushes to zero and makes subnormal."""
    overflow, underflow, subnormal = counted[0]
    best = min(counted, key=lambda k: (sum(counted[k][:2]), counted[k][2], abs(k)))
    return FormatAdvice(
        number_format=known,
        count=count,
        nonzero=nonzero,
        overflow=overflow,
        underflow=underflow,
        subnormal=subnormal,
        overflow_at_most=overflow + unsure[0],
        underflow_at_most=underflow + unsure[1],
        best_scale=2.0**best,
        lost_at_best=sum(counted[best][:2]),
    )


def _count(
    magnitudes: Tensor, scales: Tensor, known: NumberFormat
) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each scale, the counts of overflow, underflow and subnormal results."""
    total = magnitudes.numel()
    # Multiplying the values by 2**k is dividing the limits by it, which is exact.
    below_bound = torch.searchsorted(
        magnitudes, known.overflow_bound / scales, right=not known.overflows_at_bound
    )
    # Half the smallest value is a tie, and zero is even: it rounds to zero.
    to_zero = torch.searchsorted(magnitudes, known.smallest / 2 / scales, right=True)
    # What rounds up to the smallest normal value is subnormal before, and loses precision.
    below_normal = torch.searchsorted(magnitudes, known.smallest_normal / scales)
    return total - below_bound, to_zero, (below_normal - to_zero).clamp(min=0)


def advise_from_exponents(
    exponents: Mapping[int, int],
    zeros: int = 0,
    formats: Iterable[Named] = FORMATS,
    largest: float | None = None,
    smallest: float | None = None,
) -> dict[str, FormatAdvice]:
    """Bound what each format would lose of values of which a histogram of exponents is known.

    Arguments:
        exponents: for each e, how many magnitudes are in [2**e, 2**(e + 1)).
        zeros: how many values are zero.
        formats: the formats to advise on, or their names; without scales.
        largest: the largest finite magnitude, if known, which narrows the bounds.
        smallest: the smallest nonzero magnitude, if known, likewise.

    Returns:
        The advice by the format's name, with the bounds of overflow and underflow.

    Raises:
        ArgumentError: a count is negative; an unknown format, or one with scales.

    Example:
        >>> from pullback.tracking.formats import advise_from_exponents
        >>> advice = advise_from_exponents({-20: 3, 0: 5, 10: 2})["E4M3"]
        >>> advice.overflow, advice.underflow, advice.best_scale
        (2, 3, 0.25)
    """
    if zeros < 0 or any(count < 0 for count in exponents.values()):
        raise ArgumentError("A count is negative.", given=f"zeros={zeros}, {dict(exponents)!r}")
    bins = {int(e): int(count) for e, count in exponents.items() if count}
    return {
        known.name: _advise_bins(bins, zeros, known, largest, smallest)
        for known in _unscaled(formats)
    }


def _advise_bins(
    bins: dict[int, int],
    zeros: int,
    known: NumberFormat,
    largest: float | None,
    smallest: float | None,
) -> FormatAdvice:
    counted = {shift: _count_bins(bins, shift, known) for shift in _candidates([*bins], known)}
    edge = known.smallest_exponent - known.mantissa_bits - 1  # half the smallest value is 2**edge
    over, under = bins.get(known.largest_exponent, 0), bins.get(edge, 0)
    if largest is not None and largest < known.overflow_bound:
        over = 0
    if smallest is not None and smallest > known.smallest / 2:
        under = 0
    nonzero = sum(bins.values())
    return _choose(known, nonzero + zeros, nonzero, counted, (over, under))


def _count_bins(bins: dict[int, int], shift: int, known: NumberFormat) -> tuple[int, int, int]:
    """Return the counts that are certain after scaling by ``2**shift``."""
    top, normal = known.largest_exponent - shift, known.smallest_exponent - shift
    edge = normal - known.mantissa_bits - 1
    overflow = sum(count for e, count in bins.items() if e > top)
    underflow = sum(count for e, count in bins.items() if e < edge)
    subnormal = sum(count for e, count in bins.items() if edge < e < normal)
    return overflow, underflow, subnormal
