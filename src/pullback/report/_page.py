"""Reports as one self-contained HTML page, and one as the value of a notebook's cell."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from pullback.internal._text import clean
from pullback.report._findings import SIGNS, Findings, Verdict

__all__ = ["render_notebook", "render_page"]

_MOST = 5  # Functions whose fault the first lines say


class _Row(NamedTuple):
    """One Function: its line in the matrix and its section below."""

    report: Findings
    anchor: str
    name: str
    module: str
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
    places = (report.function.rpartition(":") for report in ordered)
    rows = [
        _Row(report, f"f{k}", name, module, clean((reruns or {}).get(report.function, "")))
        for k, (report, (module, _, name)) in enumerate(zip(ordered, places, strict=True))
    ]
    unfinished = [(report.function, report.unchecked) for report in ordered if report.unchecked]
    facts: dict[str, Any] = {
        "rows": rows,
        "clauses": _columns(reports),
        "most": _MOST,
        "signs": SIGNS,
        "bad": [row for row in rows if row.report.problems],
        "counts": _counts(reports),
        "accepted": [row for row in rows if row.report.accepted],
        "not_checked": [
            (clean(name), clean(reason)) for name, reason in [*not_checked, *unfinished]
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
