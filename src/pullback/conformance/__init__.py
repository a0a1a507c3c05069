"""The checker behind `pullback.check`: the clauses of the contract, and how they are run."""

from pullback.internal._extras import require_tensor as _require_tensor

_require_tensor("pullback.conformance")

from pullback.conformance._check import Call, bind, check, check_calls, select_clauses
from pullback.conformance._clause import Clause
from pullback.conformance.clauses import CLAUSES, ClauseId
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._structure import keep, outside
from pullback.conformance.probing._resize import Resizing, resizings, together
from pullback.conformance.process._forked import can_copy
from pullback.conformance.process._guard import (
    device_in_use,
    global_settings,
    guarded,
    reseed,
    unpatched,
)
from pullback.conformance.process._limits import NoEnd, limited
from pullback.conformance.ranks._ranks import Ranks
from pullback.report import Finding, Report, Verdict

__all__ = [
    "CLAUSES",
    "Arguments",
    "Call",
    "Clause",
    "ClauseId",
    "Finding",
    "NoEnd",
    "Ranks",
    "Report",
    "Resizing",
    "Verdict",
    "bind",
    "can_copy",
    "check",
    "check_calls",
    "device_in_use",
    "global_settings",
    "guarded",
    "keep",
    "limited",
    "outside",
    "reseed",
    "resizings",
    "select_clauses",
    "together",
    "unpatched",
]
__dir__ = __all__.copy  # completion offers these names, and no module inside
