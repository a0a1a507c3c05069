"""`thin`: no more moments than a picture has room for, and none of the non-finite ones lost."""

from dataclasses import replace

import numpy as np

from pullback.tracking.run._log import Run, Series
from pullback.tracking.run._points import BAD, Points

__all__ = ["MOMENTS", "thin"]

MOMENTS = 400


def thin(run: Run, moments: int = MOMENTS) -> Run:
    """Keep at most about so many moments of a run.

    Moments are taken at equal distances over the whole run, the same for every tensor; of a
    tensor that was non-finite in between, its first such moment is kept too.
    """
    steps = [_moments(series.points) for series in run.series]
    every = np.unique(np.concatenate(steps)) if steps else np.zeros(0, np.int64)
    if len(every) <= moments:
        return run
    chosen = every[np.linspace(0, len(every) - 1, moments).round().astype(np.int64)]
    series = tuple(
        Series(one.key, one.total, _keep(one.points, np.isin(at, chosen)))
        for one, at in zip(run.series, steps, strict=True)
    )
    return replace(run, series=series)


def _moments(points: Points) -> np.ndarray:
    """One number a moment, in their order."""
    return points.steps.astype(np.int64) * (1 << 20) + points.microbatches.astype(np.int64)


def _keep(points: Points, chosen: np.ndarray) -> Points:
    bad = np.flatnonzero((points.flags & BAD) > 0)
    chosen = chosen.copy()
    chosen[bad[:1]] = True
    return points[chosen]
