"""`render_junit`: reports as JUnit XML, a suite for each Function and a case for each clause."""

from collections.abc import Sequence
from xml.etree import ElementTree

from pullback.report._findings import Finding, Findings
from pullback.report._verdict import SIGNS

__all__ = ["render_junit"]

# XML 1.0 allows no control characters but these; reprs of tensors never hold others, messages may.
_ALLOWED_CONTROLS = "\t\n\r"


def render_junit(reports: Sequence[Findings], not_checked: Sequence[tuple[str, str]] = ()) -> str:
    """Return JUnit XML.

    Arguments:
        reports: what was checked.
        not_checked: names of Functions that could not be checked, with the reason.

    Returns:
        The text of the file.

    Example:
        >>> "testsuites" in render_junit([Findings("a:F", "exact", False, (), 0)])
        True
    """
    root = ElementTree.Element("testsuites", name="pullback")
    for report in reports:
        _add_suite(root, report)
    for name, reason in not_checked:
        suite = ElementTree.SubElement(root, "testsuite", name=name, tests="1", skipped="1")
        case = ElementTree.SubElement(suite, "testcase", classname=name, name="inputs")
        ElementTree.SubElement(case, "skipped", message=_clean(reason))
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _add_suite(root: ElementTree.Element, report: Findings) -> None:
    def count(tag: str) -> str:
        return str(sum(SIGNS[finding.verdict].junit == tag for finding in report))

    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=report.function,
        tests=str(len(report)),
        failures=count("failure"),
        errors=count("error"),
        skipped=count("skipped"),
        time=f"{report.seconds:.3f}",
    )
    for finding in report:
        case = ElementTree.SubElement(
            suite, "testcase", classname=report.function, name=finding.clause
        )
        _mark(case, finding)


def _mark(case: ElementTree.Element, finding: Finding) -> None:
    tag = SIGNS[finding.verdict].junit
    if not tag:
        return
    message = f"{finding.verdict.value}: {finding.detail}"
    if tag == "system-out":  # it has no attributes
        ElementTree.SubElement(case, tag).text = _clean(f"{message} {finding.hint}".rstrip())
        return
    mark = ElementTree.SubElement(case, tag, message=_clean(message))
    if finding.verdict.is_bad:
        mark.set("type", finding.verdict.value)
        mark.text = _clean(f"{finding}\n\n{finding.repro}")


def _clean(text: str) -> str:
    return "".join(c for c in text if c >= " " or c in _ALLOWED_CONTROLS)
