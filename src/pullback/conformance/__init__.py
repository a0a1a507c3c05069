"""The checker behind `pullback.check`: clauses, verdicts and reports."""

from pullback.conformance._check import check
from pullback.conformance._report import Finding, Report, Verdict

__all__ = ["Finding", "Report", "Verdict", "check"]
