"""What values and gradients look like while a model trains."""

from pullback.internal._extras import require_tensor as _require_tensor

_require_tensor("pullback.tracking")

from pullback.tracking.formats import (
    BlockErrors,
    FormatAdvice,
    NumberFormat,
    SimulatedFormat,
    advise_formats,
    advise_from_exponents,
    simulate_format,
)
from pullback.tracking.measure._statistics import Statistics
from pullback.tracking.report._diagnosis import Change, Finding, diagnose, diff
from pullback.tracking.run._identity import Key, Observation, Place
from pullback.tracking.run._log import Run, Series
from pullback.tracking.run._recording import read_run
from pullback.tracking.watch._annotate import annotate
from pullback.tracking.watch._measures import BlockAdvice, channel_maximum
from pullback.tracking.watch._track import Record, track
from pullback.tracking.watch._tracker import Tracker

__all__ = [
    "BlockAdvice",
    "BlockErrors",
    "Change",
    "Finding",
    "FormatAdvice",
    "Key",
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
