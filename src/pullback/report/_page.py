"""Reports as one self-contained HTML page, and one as the value of a notebook's cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from pullback.internal._text import clean
from pullback.report._findings import Finding, Findings
from pullback.report._verdict import SIGNS, Verdict

__all__ = ["render_notebook", "render_page"]

_MOST = 5  # Functions whose fault the first lines say


@dataclass(frozen=True)
class _Cell:
    """One Function at one clause."""

    verdict: str
    glyph: str
    title: str
    anchor: str


@dataclass(frozen=True)
class _Card:
    """One finding in full, and those that have its cause."""

    finding: Finding
    anchor: str
    told: str = ""
    others: "tuple[_Card, ...]" = ()


@dataclass(frozen=True)
class _Row:
    """One Function: its line in the matrix and its section below."""

    report: Findings
    anchor: str
    name: str
    module: str
    cells: tuple[_Cell, ...]
    problems: tuple[_Card, ...]
    accepted: tuple[_Card, ...]
    untidy: tuple[_Card, ...]
    lacking: tuple[_Card, ...]
    rerun: str


def render_page(
    reports: Sequence[Findings],
    *,
    not_checked: Sequence[tuple[str, str]] = (),
    not_imported: Sequence[str] = (),
    command: str = "",
    reruns: Mapping[str, str] | None = None,
    seconds: float | None = None,
    partial: str = "",
) -> str:
    """Return a page: a summary, the matrix Function x clause, and each finding that is broken.

    Arguments:
        reports: what was checked.
        not_checked: names of Functions that could not be checked, with the reason.
        not_imported: modules that could not be looked into, one line each.
        command: the command line that was run.
        reruns: function name -> the command line that checks it alone again.
        seconds: how long the run took; the times of the reports together if ``None``.
        partial: why not everything that was asked for is here, or an empty text.

    Returns:
        HTML that loads nothing; everything from the reports is escaped.

    Example:
        >>> page = render_page([Findings("a:F", "exact", False, (), 0)])
        >>> "a:F" in page and "http://" not in page
        True
    """
    ordered = sorted(reports, key=lambda report: report.rank)
    clauses = _columns(reports)
    rows = [_row(k, report, clauses, reruns or {}) for k, report in enumerate(ordered)]
    facts: dict[str, Any] = {
        "rows": rows,
        "clauses": clauses,
        "most": _MOST,
        "meanings": [(verdict.value, sign.glyph, sign.meaning) for verdict, sign in SIGNS.items()],
        "bad": [row for row in rows if row.problems],
        "untidy": [row for row in rows if row.untidy],
        "lacking": [row for row in rows if row.lacking],
        "counts": _counts(reports),
        "accepted": [row for row in rows if row.accepted],
        "not_checked": [
            (clean(name), clean(reason)) for name, reason in [*not_checked, *_not_finished(ordered)]
        ],
        "not_imported": [clean(line) for line in not_imported],
        "left_out": list(dict.fromkeys(name for report in reports for name in report.without)),
        "command": clean(command),
        "partial": clean(partial),
        "environment": dict(ordered[0].environment) if ordered else {},
        "seconds": sum(r.seconds for r in reports) if seconds is None else seconds,
        "seed": ordered[0].seed if ordered else 0,
    }
    return _template("report.html.jinja").render(facts)


def render_notebook(report: Findings) -> str:
    """Return a piece of HTML with the colours and the font of the notebook around it.

    Arguments:
        report: what was found.

    Returns:
        HTML without scripts; everything from the report is escaped.

    Example:
        >>> "a:F" in render_notebook(Findings("a:F", "exact", False, (), 0))
        True
    """
    found = {name: n for name, n in _counts([report]).items() if n and name in list(Verdict)}
    return _template("notebook.html.jinja").render(
        report=report, signs=SIGNS,
        counts=", ".join(f"{count} {name}" for name, count in found.items()),
        state="ok" if report.ok else f"{len(report.problems)} problem(s)",
    )  # fmt: skip


def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("pullback.report", "templates"), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(name)


def _columns(reports: Sequence[Findings]) -> list[str]:
    """The clauses, first those that somebody breaks: a narrow screen shows a few columns."""
    every = list(dict.fromkeys(item.clause for report in reports for item in report))
    broken = {item.clause for report in reports for item in report.problems}
    return sorted(every, key=lambda clause: clause not in broken)


def _not_finished(reports: Sequence[Findings]) -> list[tuple[str, str]]:
    return [(report.function, report.unchecked) for report in reports if report.unchecked]


def _counts(reports: Sequence[Findings]) -> dict[str, int]:
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


def _row(number: int, report: Findings, clauses: Sequence[str], reruns: Mapping[str, str]) -> _Row:
    anchor = f"f{number}"
    module, _, name = report.function.rpartition(":")
    cells = tuple(_cell(report, clause, anchor) for clause in clauses)
    problems = tuple(_cause(report, item, anchor) for item in report.causes)
    accepted = tuple(_card(item, anchor) for item in report.accepted)
    untidy, lacking = (
        tuple(_card(item, anchor) for item in report if item.verdict is verdict)
        for verdict in (Verdict.UNTIDY, Verdict.LACKING)
    )
    rerun = clean(reruns.get(report.function, ""))
    return _Row(report, anchor, name, module, cells, problems, accepted, untidy, lacking, rerun)


def _cause(report: Findings, finding: Finding, anchor: str) -> _Card:
    others = tuple(_card(f, anchor) for f in report.problems if f.cause == finding.clause)
    return replace(_card(finding, anchor), told=report.same_cause(finding), others=others)


def _card(finding: Finding, anchor: str) -> _Card:
    return _Card(finding, f"{anchor}-{finding.clause}")


def _cell(report: Findings, clause: str, anchor: str) -> _Cell:
    if clause not in report:
        return _Cell("none", "", f"{clause}: not run", "")
    finding = report[clause]
    title = f"{clause}: {finding.verdict.value}. {finding.detail}"
    target = f"{anchor}-{clause}" if not finding.ok else ""
    return _Cell(finding.verdict.value, SIGNS[finding.verdict].glyph, title, target)
