"""`merge_reports`: several calls of one Function, one report."""

from collections.abc import Sequence
from dataclasses import replace

from pullback.report._findings import Finding
from pullback.report._report import Report
from pullback.report._verdict import SIGNS

__all__ = ["merge_reports"]

_WORST_FIRST = list(SIGNS)


def merge_reports(reports: Sequence[Report]) -> Report:
    """Put the reports of several calls of one Function together, the worst of each clause.

    Arguments:
        reports: at least one, of the same Function.

    Returns:
        A report whose finding for each clause is the most serious one, naming its call; of several
        the first that shows numbers.
    """
    first = reports[0]
    if len(reports) == 1:
        return first
    findings = []
    for clause in dict.fromkeys(item.clause for report in reports for item in report):
        found = [(k, report[clause]) for k, report in enumerate(reports) if clause in report]
        number, worst = min(
            found, key=lambda pair: (_WORST_FIRST.index(pair[1].verdict), not pair[1].expected)
        )
        findings.append(_named_call(worst, number, len(reports)))
    return replace(
        first,
        findings=tuple(findings),
        seconds=sum(report.seconds for report in reports),
        # An input is a constant where no call differentiates it.
        constants=tuple(
            path for path in first.constants if all(path in report.constants for report in reports)
        ),
        unjudged=next((report.unjudged for report in reports if report.unjudged), ""),
        unfinished=next((report.unfinished for report in reports if report.unfinished), ""),
    )


def _named_call(finding: Finding, number: int, count: int) -> Finding:
    if finding.ok:
        return finding
    return replace(finding, detail=f"{finding.detail} (call {number + 1} of {count})")
