"""`render_notebook`: a report as the last value of a notebook's cell."""

from collections import Counter

from jinja2 import Environment, PackageLoader, StrictUndefined

from pullback.report._findings import Finding, Findings
from pullback.report._verdict import SIGNS, Verdict

__all__ = ["render_notebook"]


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
    environment = Environment(
        loader=PackageLoader("pullback.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found = Counter(finding.verdict for finding in report)
    counts = ", ".join(f"{found[verdict]} {verdict.value}" for verdict in Verdict if found[verdict])
    return environment.get_template("notebook.html.jinja").render(
        report=report,
        counts=counts,
        facts=_facts,
        signs=SIGNS,
        state="ok" if report.ok else f"{len(report.problems)} problem(s)",
    )


def _facts(finding: Finding) -> list[tuple[str, str]]:
    facts = (
        ("input", finding.input),
        ("expected", finding.expected),
        ("got", finding.got),
        ("mend", finding.hint),
        ("source", finding.source),
    )
    return [(label, text) for label, text in facts if text]
