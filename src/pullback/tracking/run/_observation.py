"""`Observation`: one tensor at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pullback.tracking.measure._statistics import Statistics
from pullback.tracking.run._identity import Key, Place

__all__ = ["Observation"]


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
