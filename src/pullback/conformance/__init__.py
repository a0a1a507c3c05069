"""The checker behind `pullback.check`: the clauses of the contract, and how they are run."""

from pullback.conformance._check import check, select_clauses
from pullback.conformance._clause import Clause
from pullback.conformance._isolate import can_copy
from pullback.conformance.clauses import CLAUSES
from pullback.report import Finding, Report, Verdict

__all__ = [
    "CLAUSES",
    "Clause",
    "Finding",
    "Report",
    "Verdict",
    "can_copy",
    "check",
    "select_clauses",
]
