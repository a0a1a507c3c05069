"""`measure_reference`: one row of statistics in plain torch, for any device and dtype."""

import torch

from pullback.tracking.measure import _layout as layout

__all__ = ["measure_reference"]


def measure_reference(values: torch.Tensor, factor: torch.Tensor | float = 1.0) -> torch.Tensor:
    """Measure every statistic of ``factor * values`` without reading anything back to the host.

    The mean and the squared distances M2 are of the finite elements, by two passes:
    ``mean = sum(x) / n``, ``M2 = sum((x - mean)^2)``, in float64. A complex number counts as two.
    """
    real = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    flat = real.detach().reshape(-1).to(torch.float64) * factor
    finite = torch.isfinite(flat)
    nonzero = finite & (flat != 0)
    kept = torch.where(finite, flat, 0.0)
    size = kept.abs()
    row = flat.new_zeros(layout.WIDTH)
    row[layout.COUNT] = flat.numel()
    row[layout.ZEROS] = (flat == 0).sum()
    row[layout.NANS] = torch.isnan(flat).sum()
    row[layout.POSITIVE_INFINITIES] = torch.isposinf(flat).sum()
    row[layout.NEGATIVE_INFINITIES] = torch.isneginf(flat).sum()
    row[layout.MIN_ABS] = torch.inf
    if flat.numel() == 0:
        return row
    share = 1.0 / finite.sum().clamp(min=1).to(torch.float64)
    mean = kept.sum() * share
    row[layout.MEAN] = mean
    row[layout.M2] = torch.where(finite, (kept - mean).square(), 0.0).sum()
    row[layout.MEAN_ABS] = size.sum() * share
    row[layout.MAX_ABS] = size.max()
    row[layout.MIN_ABS] = torch.where(nonzero, size, torch.inf).min()
    # frexp gives |x| = m 2^e with m in [1/2, 1), so that floor(log2 |x|) is e - 1.
    exponent = torch.frexp(torch.where(nonzero, kept, 1.0)).exponent - 1
    position = exponent.clamp(layout.BELOW, layout.ABOVE).to(torch.int64) - layout.BELOW
    histogram = flat.new_zeros(layout.BINS).index_add_(0, position, nonzero.to(torch.float64))
    row[layout.FIRST_BIN :] = histogram
    return row
