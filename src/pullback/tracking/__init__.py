"""What values and gradients look like while a model trains."""

from pullback.internal._extras import require_tensor as _require_tensor

_require_tensor("pullback.tracking")

from pullback.tracking._annotate import annotate
from pullback.tracking._diagnosis import Finding, diagnose
from pullback.tracking._difference import Change, diff
from pullback.tracking._identity import Key, Place
from pullback.tracking._measures import channel_maximum
from pullback.tracking._observation import Observation
from pullback.tracking._reading import read_run
from pullback.tracking._record import Record
from pullback.tracking._run import NonFinite, Run, Series
from pullback.tracking._statistics import Statistics
from pullback.tracking._track import track
from pullback.tracking._tracker import Tracker
from pullback.tracking.formats import (
    FormatAdvice,
    NumberFormat,
    SimulatedFormat,
    advise_formats,
    advise_from_exponents,
    simulate_format,
)

__all__ = [
    "Change",
    "Finding",
    "FormatAdvice",
    "Key",
    "NonFinite",
    "NumberFormat",
    "Observation",
    "Place",
    "Record",
    "Run",
    "Series",
    "SimulatedFormat",
    "Statistics",
    "Tracker",
    "advise_formats",
    "advise_from_exponents",
    "annotate",
    "channel_maximum",
    "diagnose",
    "diff",
    "read_run",
    "simulate_format",
    "track",
]
__dir__ = __all__.copy  # completion offers these names, and no module inside
