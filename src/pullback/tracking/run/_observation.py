"""`Observation`: one tensor at one moment; and `Sink`, what receives them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pullback.tracking.measure._statistics import Statistics
from pullback.tracking.run._identity import Key, Place

__all__ = ["Observation", "Sink"]


@dataclass(frozen=True, slots=True)
class Observation:
    """One tensor at one moment, in full.

    Arguments:
        key: which tensor.
        place: the step and the microbatch.
        statistics: what was measured.
        measures: what statistics of one's own gave, by name; not for a tensor that has this name
            beside another.
    """

    key: Key
    place: Place
    statistics: Statistics
    measures: Mapping[str, np.ndarray] = field(default_factory=dict)


class Sink(Protocol):
    """What receives observations while a model trains."""

    def write(self, observations: Sequence[Observation]) -> None:
        """Take what was measured since the last flush, in the order of execution."""
        ...

    def close(self) -> None:
        """Take nothing any more."""
        ...
