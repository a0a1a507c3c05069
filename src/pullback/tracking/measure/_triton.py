"""The statistics of a tensor on a GPU: one pass over memory, then a merge of partial rows (Triton).

The first kernel gives each program a stretch of the tensor; it keeps a running mean and M2 in
float64, merged tile by tile with the pairwise formula, and adds its histogram of exponents to a
common one. The second kernel merges the programs' rows. Neither waits for the host.
"""

import torch
import triton  # pyrefly: ignore[missing-import]
import triton.language as tl  # pyrefly: ignore[missing-import]

from pullback.tracking.measure._layout import ABOVE, BELOW, BINS, FIRST_BIN

__all__ = ["measure_triton"]

TILE = 2048
PROGRAMS = 512  # rows that the second kernel merges at once; a power of two
SLOTS = 512  # tl.histogram wants a power of two above BINS; the last takes what has no exponent
SCALARS = tl.constexpr(10)


@triton.jit
def _partial(  # noqa: PLR0915 - a kernel is one function
    values,
    factor,
    rows,
    histogram,
    size,
    tiles,
    below: tl.constexpr,
    bins: tl.constexpr,
    slots: tl.constexpr,
    tile: tl.constexpr,
):
    # Long: one pass over memory is one kernel, and Triton has no cheap way to split it.
    program = tl.program_id(0)
    scale = tl.load(factor)
    n = tl.zeros((), tl.float64)
    mean = tl.zeros((), tl.float64)
    m2 = tl.zeros((), tl.float64)
    mean_abs = tl.zeros((), tl.float64)
    largest = tl.zeros((), tl.float64)
    smallest = tl.zeros((), tl.float64) + float("inf")
    zeros = tl.zeros((), tl.float64)
    nans = tl.zeros((), tl.float64)
    positive = tl.zeros((), tl.float64)
    negative = tl.zeros((), tl.float64)
    counts = tl.zeros([slots], tl.int32)
    for index in range(tiles):
        start = (program.to(tl.int64) * tiles + index) * tile
        offsets = start + tl.arange(0, tile)
        inside = offsets < size
        x = tl.load(values + offsets, mask=inside, other=0.0).to(tl.float64) * scale
        magnitude = tl.abs(x)
        is_nan = (x != x) & inside  # noqa: PLR0124 - only NaN differs from itself
        is_infinite = (magnitude == float("inf")) & inside
        finite = inside & (magnitude < float("inf"))
        nonzero = finite & (magnitude > 0)
        count = tl.sum(finite.to(tl.float64), 0)
        kept = tl.where(finite, x, 0.0)
        own = tl.where(count > 0, 1.0 / tl.maximum(count, 1.0), 0.0)
        average = tl.sum(kept, 0) * own
        distance = tl.where(finite, x - average, 0.0)
        total = tl.maximum(n + count, 1.0)
        away = average - mean
        m2 += tl.sum(distance * distance, 0) + away * away * n * count / total
        mean += away * count / total
        mean_abs += (tl.sum(tl.abs(kept), 0) * own - mean_abs) * count / total
        n += count
        largest = tl.maximum(largest, tl.max(tl.abs(kept), 0))
        smallest = tl.minimum(smallest, tl.min(tl.where(nonzero, magnitude, float("inf")), 0))
        zeros += tl.sum((inside & (x == 0)).to(tl.float64), 0)
        nans += tl.sum(is_nan.to(tl.float64), 0)
        positive += tl.sum((is_infinite & (x > 0)).to(tl.float64), 0)
        negative += tl.sum((is_infinite & (x < 0)).to(tl.float64), 0)
        # The exponent field of a float64: every float32, subnormal or not, is normal there.
        bits = magnitude.to(tl.int64, bitcast=True)
        exponent = (bits >> 52).to(tl.int32) - 1023
        place = tl.minimum(tl.maximum(exponent - below, 0), bins - 1)
        counts += tl.histogram(tl.where(nonzero, place, slots - 1), slots)
    # Once for each program: what all of them add to the same few numbers waits in line.
    slot = tl.arange(0, slots)
    tl.atomic_add(histogram + slot, counts.to(tl.float64), mask=(slot < bins) & (counts > 0))
    bad = nans + positive + negative
    out = rows + program * SCALARS
    tl.store(out + 0, n + bad)
    tl.store(out + 1, mean)
    tl.store(out + 2, m2)
    tl.store(out + 3, mean_abs)
    tl.store(out + 4, largest)
    tl.store(out + 5, smallest)
    tl.store(out + 6, zeros)
    tl.store(out + 7, nans)
    tl.store(out + 8, positive)
    tl.store(out + 9, negative)


@triton.jit
def _merge(rows, row, programs, width: tl.constexpr):
    index = tl.arange(0, width)
    inside = index < programs
    start = rows + index * SCALARS
    count = tl.load(start + 0, mask=inside, other=0.0)
    mean = tl.load(start + 1, mask=inside, other=0.0)
    m2 = tl.load(start + 2, mask=inside, other=0.0)
    mean_abs = tl.load(start + 3, mask=inside, other=0.0)
    nans = tl.load(start + 7, mask=inside, other=0.0)
    positive = tl.load(start + 8, mask=inside, other=0.0)
    negative = tl.load(start + 9, mask=inside, other=0.0)
    finite = count - nans - positive - negative
    total = tl.maximum(tl.sum(finite, 0), 1.0)
    average = tl.sum(finite * mean, 0) / total
    distance = mean - average
    tl.store(row + 0, tl.sum(count, 0))
    tl.store(row + 1, average)
    tl.store(row + 2, tl.sum(m2, 0) + tl.sum(finite * distance * distance, 0))
    tl.store(row + 3, tl.sum(finite * mean_abs, 0) / total)
    tl.store(row + 4, tl.max(tl.load(start + 4, mask=inside, other=0.0), 0))
    tl.store(row + 5, tl.min(tl.load(start + 5, mask=inside, other=float("inf")), 0))
    tl.store(row + 6, tl.sum(tl.load(start + 6, mask=inside, other=0.0), 0))
    tl.store(row + 7, tl.sum(nans, 0))
    tl.store(row + 8, tl.sum(positive, 0))
    tl.store(row + 9, tl.sum(negative, 0))


def measure_triton(
    values: torch.Tensor, row: torch.Tensor, factor: float | torch.Tensor = 1.0
) -> None:
    """Write every statistic of ``factor * values`` into a row on the same device.

    Values are floating, of 16 bits at least, and follow one another in memory.
    """
    size = values.numel()
    tiles = max(1, -(-size // (TILE * PROGRAMS)))
    programs = max(1, -(-size // (TILE * tiles)))
    options = {"dtype": torch.float64, "device": values.device}
    # A number is written by the device: to copy it there would wait for all that it has to do.
    known = isinstance(factor, torch.Tensor)
    scale = factor.to(**options) if known else torch.full((), factor, **options)
    rows = torch.empty(programs, FIRST_BIN, **options)
    histogram = torch.zeros(SLOTS, **options)
    grid = (programs,)
    _partial[grid](values, scale, rows, histogram, size, tiles, BELOW, BINS, SLOTS, TILE)
    _merge[(1,)](rows, row, programs, PROGRAMS)
    row[FIRST_BIN:] = histogram[: ABOVE - BELOW + 1]
