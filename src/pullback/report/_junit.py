"""`render_junit`: reports as JUnit XML, a suite for each Function and a case for each clause."""

from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

from pullback.internal._text import clean
from pullback.report._findings import SIGNS, Finding, Findings

__all__ = ["render_junit"]


def render_junit(
    reports: Sequence[Findings],
    not_checked: Sequence[tuple[str, str]] = (),
    partial: str = "",
) -> str:
    """Return JUnit XML.

    Arguments:
        reports: what was checked.
        not_checked: names of Functions that could not be checked, with the reason.
        partial: why not everything that was asked for is here, or an empty text.

    Example:
        >>> "testsuites" in render_junit([Findings("a:F", "exact", False, (), 0)])
        True
    """
    root = ElementTree.Element("testsuites", name="pullback")
    if partial:
        # An error of the run as a whole: no reader takes a part for all.
        suite = ElementTree.SubElement(root, "testsuite", name="pullback", tests="1", errors="1")
        case = ElementTree.SubElement(suite, "testcase", classname="pullback", name="partial")
        ElementTree.SubElement(case, "error", message=clean(partial), type="partial")
    for report in reports:
        _add_suite(root, report)
    for name, reason in not_checked:
        suite = ElementTree.SubElement(root, "testsuite", name=clean(name), tests="1", skipped="1")
        case = ElementTree.SubElement(suite, "testcase", classname=clean(name), name="inputs")
        ElementTree.SubElement(case, "skipped", message=clean(reason))
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _add_suite(root: ElementTree.Element, report: Findings) -> None:
    counts = Counter(map(_tag, report))
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=report.function,
        tests=str(len(report)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
        time=f"{report.seconds:.3f}",
    )
    for finding in report:
        case = ElementTree.SubElement(
            suite, "testcase", classname=report.function, name=finding.clause
        )
        _mark(case, finding)


def _tag(finding: Finding) -> str:
    return "skipped" if finding.accepted else SIGNS[finding.verdict].junit


def _mark(case: ElementTree.Element, finding: Finding) -> None:
    tag = _tag(finding)
    if not tag:
        return
    message = f"{finding.verdict.value}: {finding.detail}"
    if finding.accepted:
        message = f"accepted ({finding.accepted}): {message}"
    if tag == "system-out":  # it has no attributes
        ElementTree.SubElement(case, tag).text = clean(f"{message} {finding.hint}".rstrip())
        return
    mark = ElementTree.SubElement(case, tag, message=clean(message))
    if not finding.ok:
        mark.set("type", finding.verdict.value)
        mark.text = f"{finding}\n\n{finding.repro}"
