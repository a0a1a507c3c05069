"""`Run`: what was recorded of a training run, as every report reads it."""

from dataclasses import dataclass, field

import numpy as np

from pullback.tracking.formats import QuantisationNoise
from pullback.tracking.measure._statistics import Statistics
from pullback.tracking.run._identity import Key
from pullback.tracking.run._observation import Observation
from pullback.tracking.run._points import Points

__all__ = ["Run", "Series", "no_points"]


@dataclass(frozen=True, slots=True)
class Series:
    """One tensor over the run.

    Arguments:
        key: which tensor.
        total: all that was ever measured of it, merged.
        points: its moments, as many as the history still holds.
    """

    key: Key
    total: Statistics
    points: Points


@dataclass(frozen=True, slots=True)
class Run:
    """A recorded run.

    Arguments:
        series: every tensor, in the order of its first appearance.
        first_nonfinite: the first tensor, in the order of execution, that held a NaN or an
            infinity, if there was one.
        predecessors: the tensors measured just before that one, oldest first, each with its scale
            (root mean square).
        every: the cadence it was recorded at, in steps.
        dropped: how many moments the history no longer holds.
        skipped: tensors that could not be measured, with the reason.
        truncated: the file that the run was read from ends in the middle of a line.
        title: the model, or the program, that was tracked.
        noise: what simulated formats lost, or one with blocks would, of each module and factor.
        advice: what to keep in higher precision, if blocks were measured: one sentence.
    """

    series: tuple[Series, ...]
    first_nonfinite: Observation | None = None
    predecessors: tuple[tuple[Key, float], ...] = ()
    every: int = 1
    dropped: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    truncated: bool = False
    title: str = "model"
    noise: tuple[QuantisationNoise, ...] = ()
    advice: str = ""


def no_points() -> Points:
    """A series without moments."""
    none = np.zeros(0)
    whole = np.zeros(0, np.int64)
    return Points(whole, whole, none, none, none, np.zeros(0, np.uint8))
