"""The checker behind `pullback.check`: the clauses of the contract, and how they are run."""

from pullback.internal._extras import require_tensor as _require_tensor

_require_tensor("pullback.conformance")

from pullback.conformance._check import check, select_clauses
from pullback.conformance._clause import Clause
from pullback.conformance._forked import can_copy
from pullback.conformance.clauses import CLAUSES, ClauseId
from pullback.report import Finding, Report, Verdict

__all__ = [
    "CLAUSES",
    "Clause",
    "ClauseId",
    "Finding",
    "Report",
    "Verdict",
    "can_copy",
    "check",
    "select_clauses",
]
__dir__ = __all__.copy  # completion offers these names, and no module inside
