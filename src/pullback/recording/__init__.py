"""What a running program applied: the recorder, recordings, discovery, and how to find it again."""

from pullback.internal._extras import require_tensor as _require_tensor

_require_tensor("pullback.recording")

from pullback.internal._launch import Limits
from pullback.recording._discover import Discovery, discover
from pullback.recording._forms import forms
from pullback.recording._launch import collect, record_program
from pullback.recording._live import copy_call
from pullback.recording._recorder import Call, Record, Recorder, why_no_call
from pullback.recording._recording import (
    RecordedCall,
    RecordedFunction,
    Recording,
    calls_on_ranks,
    load_call,
)
from pullback.recording._rerun import live_calls, rerun_call
from pullback.recording.locator import Locator, find, load_script, source_of
from pullback.recording.training import (
    KINDS,
    ParameterFinding,
    Training,
    TrainingWatch,
    watch_training,
)

__all__ = [
    "KINDS",
    "Call",
    "Discovery",
    "Limits",
    "Locator",
    "ParameterFinding",
    "Record",
    "RecordedCall",
    "RecordedFunction",
    "Recorder",
    "Recording",
    "Training",
    "TrainingWatch",
    "calls_on_ranks",
    "collect",
    "copy_call",
    "discover",
    "find",
    "forms",
    "live_calls",
    "load_call",
    "load_script",
    "record_program",
    "rerun_call",
    "source_of",
    "watch_training",
    "why_no_call",
]
__dir__ = __all__.copy  # completion offers these names, and no module inside
