"""What values and gradients look like while a model trains."""

from pullback.tracking._diagnosis import Finding, diagnose
from pullback.tracking._difference import Change, diff
from pullback.tracking._identity import Key, Place
from pullback.tracking._observation import Observation
from pullback.tracking._reading import read_run
from pullback.tracking._record import Record
from pullback.tracking._run import NonFinite, Run, Series
from pullback.tracking._statistics import Statistics
from pullback.tracking._track import track
from pullback.tracking._tracker import Tracker

__all__ = [
    "Change",
    "Finding",
    "Key",
    "NonFinite",
    "Observation",
    "Place",
    "Record",
    "Run",
    "Series",
    "Statistics",
    "Tracker",
    "diagnose",
    "diff",
    "read_run",
    "track",
]
