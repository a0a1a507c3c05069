"""`render`: reports as one self-contained HTML page, without any outside resource."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from pullback.conformance._report import Finding, Report, Verdict
from pullback.conformance._why import WHY

__all__ = ["render"]

_GLYPHS = {
    Verdict.BROKEN: "✗",
    Verdict.CRASHES: "!",
    Verdict.LACKING: "○",
    Verdict.HOLDS: "✓",
    Verdict.SKIPPED: "·",
}
_MEANINGS = (
    (Verdict.BROKEN, "broken", "a wrong number, a leak or a mutation, with no error"),
    (Verdict.CRASHES, "crashes", "an unclear error, or the process dies or hangs"),
    (Verdict.LACKING, "lacking", "refused with a clear error"),
    (Verdict.HOLDS, "holds", "tested and kept"),
    (Verdict.SKIPPED, "skipped", "does not apply here"),
)


@dataclass(frozen=True)
class _Cell:
    """One Function at one clause."""

    verdict: str
    glyph: str
    title: str
    anchor: str


@dataclass(frozen=True)
class _Card:
    """One finding, with the reason why its clause matters."""

    finding: Finding
    why: str
    anchor: str


@dataclass(frozen=True)
class _Row:
    """One Function: its line in the matrix and its section below."""

    report: Report
    anchor: str
    name: str
    module: str
    cells: tuple[_Cell, ...]
    problems: tuple[_Card, ...]
    lacking: tuple[_Card, ...]
    rerun: str


def render(
    reports: Sequence[Report],
    *,
    not_checked: Sequence[tuple[str, str]] = (),
    not_imported: Sequence[str] = (),
    command: str = "",
    reruns: Mapping[str, str] | None = None,
) -> str:
    """Return a page: a summary, the matrix Function x clause, and each finding that is broken.

    Arguments:
        reports: what was checked.
        not_checked: names of Functions that could not be checked, with the reason.
        not_imported: modules that could not be looked into, one line each.
        command: the command line that was run.
        reruns: function name -> the command line that checks it alone again.

    Returns:
        HTML that loads nothing; everything from the reports is escaped.

    Example:
        >>> page = render([Report("a:F", "exact", False, (), 0)])
        >>> "a:F" in page and "http://" not in page
        True
    """
    ordered = sorted(reports, key=_rank)
    clauses = list(dict.fromkeys(item.clause for report in reports for item in report))
    rows = [_row(k, report, clauses, reruns or {}) for k, report in enumerate(ordered)]
    environment = Environment(
        loader=PackageLoader("pullback.conformance", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    facts: dict[str, Any] = {
        "rows": rows,
        "clauses": clauses,
        "meanings": [(verdict.value, _GLYPHS[verdict], *rest) for verdict, *rest in _MEANINGS],
        "bad": [row for row in rows if row.problems],
        "lacking": [row for row in rows if row.lacking],
        "counts": _counts(reports),
        "not_checked": list(not_checked),
        "not_imported": list(not_imported),
        "command": command,
        "environment": dict(ordered[0].environment) if ordered else {},
        "seconds": sum(report.seconds for report in reports),
        "seed": ordered[0].seed if ordered else 0,
    }
    return environment.get_template("report.html.jinja").render(facts)


def _rank(report: Report) -> tuple[int, int, str]:
    broken = sum(item.verdict is Verdict.BROKEN for item in report)
    crashes = sum(item.verdict is Verdict.CRASHES for item in report)
    return (-broken, -crashes, report.function)


def _counts(reports: Sequence[Report]) -> dict[str, int]:
    found = {verdict.value: 0 for verdict in Verdict}
    for report in reports:
        for item in report:
            found[item.verdict.value] += 1
    return {
        **found,
        "functions": len(reports),
        "ok": sum(report.ok for report in reports),
        "bad": sum(not report.ok for report in reports),
    }


def _row(number: int, report: Report, clauses: Sequence[str], reruns: Mapping[str, str]) -> _Row:
    anchor = f"f{number}"
    module, _, name = report.function.rpartition(":")
    cells = tuple(_cell(report, clause, anchor) for clause in clauses)
    problems = tuple(_card(item, anchor) for item in report.problems)
    lacking = tuple(_card(item, anchor) for item in report if item.verdict is Verdict.LACKING)
    rerun = reruns.get(report.function, "")
    return _Row(report, anchor, name, module, cells, problems, lacking, rerun)


def _card(finding: Finding, anchor: str) -> _Card:
    return _Card(finding, WHY.get(finding.clause, ""), f"{anchor}-{finding.clause}")


def _cell(report: Report, clause: str, anchor: str) -> _Cell:
    if clause not in report:
        return _Cell("none", "", f"{clause}: not run", "")
    finding = report[clause]
    title = f"{clause}: {finding.verdict.value}. {finding.detail}"
    target = f"{anchor}-{clause}" if finding.verdict.is_bad else ""
    return _Cell(finding.verdict.value, _GLYPHS[finding.verdict], title, target)
