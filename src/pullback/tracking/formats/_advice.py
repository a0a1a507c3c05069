"""Format advice: what a number format loses of some values, and the scale that loses least."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.gradients._check import check_tensor
from pullback.internal._arguments import check_counts, checked, is_whole
from pullback.tracking.formats._round import Named, find_format, parts_of
from pullback.tracking.formats._table import FORMATS, NumberFormat
from pullback.tracking.measure import _layout as layout
from pullback.tracking.measure._dispatch import readable

__all__ = ["FormatAdvice", "advise_formats", "advise_from_exponents"]

# A histogram's ends: nothing is outside of float64's. Those of a tracker's are open: its first bin
# also counts everything smaller, its last everything larger.
_LEAST, _MOST = -1074, 1023
_OPEN = layout.BELOW, layout.ABOVE


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


@checked
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
        UnsupportedError: a sparse, nested or packed tensor, or one without elements of its own.

    Example:
        >>> import torch
        >>> from pullback.tracking.formats import advise_formats
        >>> advice = advise_formats(torch.tensor([1e-6, 1.0, 1000.0]))["E4M3"]
        >>> advice.overflow, advice.underflow, advice.best_scale
        (1, 1, 0.25)
    """
    check_tensor(values, "advise_formats")
    flat = parts_of(readable(values)).reshape(-1).to(torch.float64).abs()
    flat = flat[flat.isfinite()]
    magnitudes = flat[flat > 0].sort().values
    upto = torch.arange(len(magnitudes) + 1, device=flat.device)
    zeros = len(flat) - len(magnitudes)
    return {
        known.name: _advise(known, magnitudes, magnitudes, upto, zeros)
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


def _advise(
    known: NumberFormat, low: Tensor, high: Tensor, upto: Tensor, zeros: int
) -> FormatAdvice:
    """Count what a format loses of magnitudes of which each lies between a low and a high one.

    Both ascend, and are the same where values are known exactly; ``upto`` is how many magnitudes
    there are before each of them, and in all.
    """
    ends = torch.frexp(torch.stack([low[0], high[-1]])).exponent - 1 if len(low) else ()
    first, last = map(int, ends) if len(low) else (known.smallest_exponent, known.largest_exponent)
    # Every power of two that may be best moves some value to a limit. Where the scaled limits leave
    # float64, infinity is above every value still, and zero is below what is not zero.
    span = known.largest_exponent - last - 1, known.smallest_exponent - first + 1
    shifts = [k for k in range(min(span[0], 0), max(span[1], 0) + 1) if -1074 <= k <= 1023]
    scales = torch.tensor([2.0**k for k in shifts], dtype=torch.float64, device=low.device)

    def count_below(limit: float, edges: Tensor, with_it: bool = False) -> Tensor:
        # Multiplying the values by 2**k is dividing the limits by it, which is exact.
        return upto[torch.searchsorted(edges, limit / scales, right=with_it)]

    beyond, half, total = known.overflow_bound, known.smallest / 2, upto[-1]
    over, over_at_most = (
        total - count_below(beyond, edges, not known.overflows_at_bound) for edges in (low, high)
    )
    # Half the smallest value is a tie, and zero is even: it rounds to zero.
    under, under_at_most = (count_below(half, edges, True) for edges in (high, low))
    # What rounds up to the smallest normal value is subnormal before, and loses precision.
    fine = (count_below(known.smallest_normal, high) - under_at_most).clamp(min=0)
    counts = torch.stack([over, under, fine, over_at_most, under_at_most], 1).tolist()
    counted = dict(zip(shifts, counts, strict=True))
    best = min(counted, key=lambda k: (sum(counted[k][:2]), counted[k][2], abs(k)))
    count = int(total)
    return FormatAdvice(
        known, zeros + count, count, *counted[0], best_scale=2.0**best,
        lost_at_best=sum(counted[best][:2]),
    )  # fmt: skip


@checked
def advise_from_exponents(
    exponents: Mapping[int, int],
    zeros: int = 0,
    formats: Iterable[Named] = FORMATS,
    largest: float | None = None,
    smallest: float | None = None,
) -> dict[str, FormatAdvice]:
    """Bound what each format would lose of values of which a histogram of exponents is known.

    Arguments:
        exponents: for each e, how many magnitudes are in [2**e, 2**(e + 1)). Those of `Statistics`
            also count everything smaller at -150, and everything larger at 128.
        zeros: how many values are zero.
        formats: the formats to advise on, or their names; without scales.
        largest: the largest finite magnitude, if known, which narrows the bounds.
        smallest: the smallest nonzero magnitude, if known, likewise.

    Returns:
        The advice by the format's name, with the bounds of overflow and underflow.

    Raises:
        ArgumentTypeError: an exponent or a count that is no whole number.
        ArgumentError: a count is negative; a largest or smallest magnitude that the histogram does
            not have; an unknown format, or one with scales.

    Example:
        >>> from pullback.tracking.formats import advise_from_exponents
        >>> advice = advise_from_exponents({-20: 3, 0: 5, 10: 2})["E4M3"]
        >>> advice.overflow, advice.underflow, advice.best_scale
        (2, 3, 0.25)
    """
    check_counts(0, zeros=zeros)
    bins: Counter[int] = Counter()
    for exponent, count in exponents.items():
        if not is_whole(exponent):
            raise ArgumentTypeError(
                "An exponent is no whole number.", given=f"{exponent!r}: {count!r}"
            )
        check_counts(0, **{f"the count at {exponent}": count})
        if count:
            bins[min(max(int(exponent), _LEAST), _MOST)] += int(count)
    found = sorted(bins)
    low = torch.tensor([2.0**e for e in found], dtype=torch.float64, device="cpu")
    high = low * (2 - 2.0**-52)
    if found and largest is not None:
        _check_end("largest", largest, found[-1])
        high[-1] = largest
    if found and smallest is not None:
        _check_end("smallest", smallest, found[0])
        low[0] = smallest
    upto = torch.tensor([0, *(bins[e] for e in found)], device="cpu").cumsum(0)
    return {known.name: _advise(known, low, high, upto, zeros) for known in _unscaled(formats)}


def _check_end(name: str, value: float, exponent: int) -> None:
    """Refuse an end of the magnitudes that does not lie in the bin at that end of the histogram."""
    below = 0.0 if exponent <= _OPEN[0] else 2.0**exponent
    above = math.inf if exponent >= _OPEN[1] else 2.0 ** (exponent + 1)
    if not below <= value < above or not value:
        raise ArgumentError(
            f"The {name} magnitude is not in the histogram.",
            given=f"{name}={value!r}, and the {name} exponent is {exponent}",
            expected=f"{below} <= {name} < {above}",
        )
