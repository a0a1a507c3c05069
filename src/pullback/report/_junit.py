"""Write what was found for other programs: JSON and JUnit XML."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pullback.cli._tasks import Outcome
from pullback.conformance._report import Finding, Report, Verdict
from pullback.errors import ArgumentError

__all__ = ["write_json", "write_junit"]

# XML 1.0 allows no control characters but these; reprs of tensors never hold others, messages may.
_ALLOWED_CONTROLS = "\t\n\r"


def write_json(outcomes: Sequence[Outcome], problems: Sequence[str], target: str) -> None:
    """Write every report and every Function that was not checked.

    Arguments:
        outcomes: what was checked.
        problems: what could not be looked into.
        target: a path, or ``"-"`` for stdout.

    Raises:
        ArgumentError: the file cannot be written.
    """
    reports = [item.report for item in outcomes if item.report is not None]
    functions: list[dict[str, Any]] = [
        {**json.loads(item.report.to_json()), "rerun": item.rerun}
        for item in outcomes
        if item.report is not None
    ]
    data = {
        "ok": all(report.ok for report in reports),
        "functions": functions,
        "not_checked": [
            {"function": item.name, "reason": item.reason}
            for item in outcomes
            if item.report is None
        ],
        "not_looked_into": list(problems),
    }
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(
            f"{target} cannot be written.",
            given=str(error),
            mend="Name a file in a folder that exists.",
        ) from error


def write_junit(outcomes: Sequence[Outcome]) -> str:
    """Return JUnit XML: a suite for each Function, a case for each clause."""
    root = ElementTree.Element("testsuites", name="pullback")
    for outcome in outcomes:
        if outcome.report is None:
            suite = ElementTree.SubElement(
                root, "testsuite", name=outcome.name, tests="1", skipped="1"
            )
            case = ElementTree.SubElement(suite, "testcase", classname=outcome.name, name="inputs")
            ElementTree.SubElement(case, "skipped", message=_clean(outcome.reason))
        else:
            _suite(root, outcome.report)
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _suite(root: ElementTree.Element, report: Report) -> None:
    def count(*verdicts: Verdict) -> str:
        return str(sum(finding.verdict in verdicts for finding in report))

    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=report.function,
        tests=str(len(report)),
        failures=count(Verdict.BROKEN),
        errors=count(Verdict.CRASHES),
        skipped=count(Verdict.SKIPPED, Verdict.LACKING),
        time=f"{report.seconds:.3f}",
    )
    for finding in report:
        case = ElementTree.SubElement(
            suite, "testcase", classname=report.function, name=finding.clause
        )
        _mark(case, finding)


def _mark(case: ElementTree.Element, finding: Finding) -> None:
    tags = {
        Verdict.BROKEN: "failure",
        Verdict.CRASHES: "error",
        Verdict.SKIPPED: "skipped",
        Verdict.LACKING: "skipped",
    }
    tag = tags.get(finding.verdict)
    if tag is None:
        return
    message = f"{finding.verdict.value}: {finding.detail}"
    mark = ElementTree.SubElement(case, tag, message=_clean(message))
    if tag in ("failure", "error"):
        mark.set("type", finding.verdict.value)
        mark.text = _clean(f"{finding}\n\n{finding.repro}")


def _clean(text: str) -> str:
    return "".join(c for c in text if c >= " " or c in _ALLOWED_CONTROLS)
