"""`Observation`: one tensor at one moment."""

from dataclasses import dataclass

from pullback.tracking._identity import Key, Place
from pullback.tracking._statistics import Statistics

__all__ = ["Observation"]


@dataclass(frozen=True, slots=True)
class Observation:
    """One tensor at one moment, in full.

    Arguments:
        key: which tensor.
        place: the step and the microbatch.
        statistics: what was measured.
    """

    key: Key
    place: Place
    statistics: Statistics
