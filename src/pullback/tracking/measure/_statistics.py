"""`Statistics`: what is known of one tensor's values, and how two such summaries are merged."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

from pullback.errors import ArgumentError
from pullback.internal._arguments import checked, reading
from pullback.tracking.measure import _layout as layout
from pullback.tracking.measure._dispatch import measure

__all__ = ["Statistics", "hide_unknown", "merge_rows", "plain_number"]


def finite_counts(rows: np.ndarray) -> np.ndarray:
    """The number of finite elements of each row."""
    bad = (
        rows[..., layout.NANS]
        + rows[..., layout.POSITIVE_INFINITIES]
        + rows[..., layout.NEGATIVE_INFINITIES]
    )
    return rows[..., layout.COUNT] - bad


# Squares of numbers beyond these are not all numbers of float64.
_LEAST, _MOST = 1e-140, 1e140


def hide_unknown(rows: np.ndarray) -> np.ndarray:
    """Put NaN into rows, of any leading shape, where float64 does not hold a moment."""
    largest = rows[..., layout.MAX_ABS]
    lost = (largest > _MOST) | ((largest > 0) & (largest < _LEAST))
    for moment in (layout.MEAN, layout.M2, layout.MEAN_ABS):
        unknown = np.isinf(rows[..., moment]) | (lost if moment == layout.M2 else False)
        rows[..., moment] = np.where(unknown, np.nan, rows[..., moment])
    return rows


def merge_rows(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Merge rows of statistics, as if their elements had been measured together.

    With ``d`` the difference of the means, ``mean = mean_1 + d n_2 / n`` and
    ``M2 = M2_1 + M2_2 + d^2 n_1 n_2 / n`` (Chan, Golub and LeVeque, 1979); counts add.

    Rows may have any leading shape.
    """
    first, second = finite_counts(one), finite_counts(other)
    share = second / np.maximum(first + second, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not known stays so
        distance = np.where(second > 0, other[..., layout.MEAN] - one[..., layout.MEAN], 0.0)
        larger = np.where(second > 0, other[..., layout.MEAN_ABS] - one[..., layout.MEAN_ABS], 0.0)
        merged = one + other
        merged[..., layout.M2] += np.square(distance) * first * share
        merged[..., layout.MEAN] = one[..., layout.MEAN] + distance * share
        merged[..., layout.MEAN_ABS] = one[..., layout.MEAN_ABS] + larger * share
    merged[..., layout.MAX_ABS] = np.maximum(one[..., layout.MAX_ABS], other[..., layout.MAX_ABS])
    merged[..., layout.MIN_ABS] = np.minimum(one[..., layout.MIN_ABS], other[..., layout.MIN_ABS])
    return merged


@dataclass(frozen=True, slots=True)
class Statistics:
    """A summary of numbers that can be merged with others exactly.

    Moments and extremes are of the finite elements alone; the others are counted. Without a finite
    element the mean, the mean magnitude and the largest are NaN. A complex number counts as two.

    Arguments:
        count: the number of elements, finite or not.
        mean: the mean of the finite elements.
        m2: the sum of their squared distances from the mean. NaN, as the standard deviation then
            is, where float64 does not hold squares: one is beyond 1e140, or all are below 1e-140.
        mean_abs: the mean of ``|x|``.
        max_abs: the largest ``|x|``.
        min_abs: the smallest nonzero ``|x|``, infinity if there is none.
        zeros: how many are zero.
        nans: how many are not a number.
        positive_infinities: how many are ``+inf``.
        negative_infinities: how many are ``-inf``.
        exponents: for each exponent ``floor(log2 |x|)`` that occurs, how many finite nonzero
            elements have it. -150 also counts everything smaller, 128 everything larger.

    Raises:
        ArgumentError: a count is negative, or there are more special values than elements.

    Example:
        >>> a = Statistics.of(torch.tensor([1.0, 2.0]))
        >>> b = Statistics.of(torch.tensor([3.0]))
        >>> a.merge(b).mean, a.merge(b).exponents
        (2.0, {0: 1, 1: 2})
    """

    count: int
    mean: float = 0.0
    m2: float = 0.0
    mean_abs: float = 0.0
    max_abs: float = 0.0
    min_abs: float = math.inf
    zeros: int = 0
    nans: int = 0
    positive_infinities: int = 0
    negative_infinities: int = 0
    exponents: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        special = self.nans + self.positive_infinities + self.negative_infinities
        least = min(self.zeros, self.nans, self.positive_infinities, self.negative_infinities)
        if least < 0 or special + self.zeros > self.count:
            raise ArgumentError(
                "These counts cannot belong to one tensor.",
                given=f"count={self.count}, zeros={self.zeros}, nans={self.nans}, "
                f"infinities={self.positive_infinities}+{self.negative_infinities}",
                expected="counts of zero or more that add up to at most `count`",
            )
        if not self.finite:  # rows have zeros there, which add up
            for unknown in ("mean", "mean_abs", "max_abs"):
                object.__setattr__(self, unknown, math.nan)

    @classmethod
    @checked
    def of(cls, values: torch.Tensor) -> "Statistics":
        """Measure a tensor, on the device it is on; the result is read back at once.

        Arguments:
            values: any shape, strides, device and numeric dtype.

        Raises:
            ArgumentTypeError: not a tensor.
            UnsupportedError: a sparse, nested or quantised tensor.
        """
        return cls.from_row(hide_unknown(measure(values)))

    @classmethod
    def from_row(cls, row: np.ndarray) -> "Statistics":
        """Read a row as the kernels write it (see `pullback.tracking.measure._layout`)."""
        filled = np.flatnonzero(row[layout.FIRST_BIN :])
        counts = row[layout.FIRST_BIN :][filled].astype(np.int64)
        numbers = row[: layout.FIRST_BIN].tolist()  # at once: one by one they take twice as long
        scalars: dict[str, Any] = {
            name: kind(number)
            for (name, kind), number in zip(_SCALARS.items(), numbers, strict=True)
        }
        exponents = dict(zip((filled + layout.BELOW).tolist(), counts.tolist(), strict=True))
        return cls(**scalars, exponents=exponents)

    def to_row(self) -> np.ndarray:
        """The row that `from_row` reads."""
        row = np.zeros(layout.WIDTH)
        row[: layout.FIRST_BIN] = [getattr(self, name) for name in _SCALARS]
        if not self.finite:
            row[[layout.MEAN, layout.MEAN_ABS, layout.MAX_ABS]] = 0.0
        for exponent, number in self.exponents.items():
            row[
                layout.FIRST_BIN + min(max(exponent, layout.BELOW), layout.ABOVE) - layout.BELOW
            ] += number
        return row

    @checked
    def merge(self, other: "Statistics") -> "Statistics":
        """The statistics of both sets of elements together."""
        return Statistics.from_row(merge_rows(self.to_row(), other.to_row()))

    @property
    def finite(self) -> int:
        """How many elements are finite."""
        return self.count - self.nans - self.positive_infinities - self.negative_infinities

    @property
    def variance(self) -> float:
        """The population variance M2 / n of the finite elements; NaN if there are none."""
        return self.m2 / self.finite if self.finite else math.nan

    @property
    def std(self) -> float:
        """The population standard deviation, the root of `variance`.

        Values whose mean is ``r`` times as large lose digits of it, at most a share of
        ``(1e-12 r)**2 / 2``, which is 5e-7 for ``r = 1e9``; measured 4e-7 for 1e11, 2e-5 for 1e13.
        """
        return math.sqrt(self.variance) if self.finite else math.nan

    @property
    def scale(self) -> float:
        """The root of the mean square, which a number format has to reach; NaN if there is none."""
        return math.hypot(self.mean, self.std) if self.finite else math.nan

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it; histogram as the first exponent and a run of counts."""
        first = min(self.exponents, default=0)
        last = max(self.exponents, default=first - 1)
        return {
            **{
                name: getattr(self, name) if kind is int else plain_number(getattr(self, name))
                for name, kind in _SCALARS.items()
            },
            "exponents": [first, *(self.exponents.get(e, 0) for e in range(first, last + 1))],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Statistics":
        """Read what `to_dict` gave.

        Raises:
            ArgumentError: a field is missing or is not a number.
        """
        with reading(
            "statistics that pullback wrote",
            data,
            f"the fields {', '.join((*_SCALARS, 'exponents'))}",
        ):
            first, *counts = data["exponents"]
            if len(counts) > layout.BINS or not layout.BELOW <= first <= layout.ABOVE + 1:
                raise ValueError("too many exponents")
            scalars: dict[str, Any] = {
                name: whole(data[name]) if kind is int else _number(data[name])
                for name, kind in _SCALARS.items()
            }
            exponents = {first + i: whole(n) for i, n in enumerate(counts) if n}
            read = cls(**scalars, exponents=exponents)
            known = not read.finite or (read.max_abs >= 0 and read.min_abs >= 0)
            if not known or min(read.m2, read.mean_abs) < 0:
                raise ValueError("a size that is none")
            return read


_SCALARS: dict[str, Any] = {each.name: each.type for each in fields(Statistics)[:-1]}
"""The fields that are a number, int or float, in the order of the row."""


def whole(value: Any) -> int:
    """Return a count that was read, or say that it is none."""
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise ValueError(f"{value!r} is not a count")
    return value


def plain_number(value: float) -> float | str:
    """A number as JSON holds it, which has no infinity and no NaN: text stands for them."""
    return value if math.isfinite(value) else str(value)


def _number(value: float | str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"{value!r} is not a number")
    return float(value)
