"""Findings at their lines: SARIF 2.1.0 for code scanning, and the annotations of GitHub Actions.

SARIF: https://docs.oasis-open.org/sarif/sarif/v2.1.0/. The commands of a workflow:
https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pullback.internal._text import clean
from pullback.report._findings import SIGNS, Finding, Findings

__all__ = ["render_annotations", "render_sarif"]

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render_sarif(
    reports: Sequence[Findings],
    not_checked: Sequence[tuple[str, str]] = (),
    *,
    root: Path | None = None,
    partial: str = "",
) -> str:
    """Return one SARIF log: a result for each finding that is broken or crashes.

    Arguments:
        reports: what was checked.
        not_checked: names of Functions that could not be checked, with the reason.
        root: the folder that paths are relative to; the working directory if ``None``.
        partial: why not everything that was asked for is here, or an empty text.

    Returns:
        JSON. A finding that a baseline accepts is there, suppressed, with its reason.

    Example:
        >>> json.loads(render_sarif([]))["version"]
        '2.1.0'
    """
    folder = Path.cwd() if root is None else root
    bad = [(report, item) for report in reports for item in report if item.verdict.is_bad]
    rules = {item.clause: item.why for _, item in bad}
    notes = [
        {"level": "warning", "message": {"text": clean(f"{name} was not checked: {reason}")}}
        for name, reason in not_checked
    ]
    if partial:
        notes.append({"level": "error", "message": {"text": clean(partial)}})
    version = next((dict(report.environment).get("pullback", "") for report in reports), "")
    driver: dict[str, Any] = {
        "name": "pullback",
        "rules": [
            {"id": clause, "shortDescription": {"text": why or clause}}
            for clause, why in rules.items()
        ],
    }
    if version:
        driver["version"] = version
    run = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {"ROOT": {"uri": f"{folder.resolve().as_uri()}/"}},
        "results": [_result(report, item, folder) for report, item in bad],
        "invocations": [{"executionSuccessful": not partial, "toolExecutionNotifications": notes}],
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def _result(report: Findings, finding: Finding, folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.clause,
        "level": "error",
        "message": {"text": _message(report, finding)},
        # The same finding in the next run, on whatever line it stands by then.
        "partialFingerprints": {
            "pullback/v1": f"{_portable(report.function, folder)}/{finding.clause}"
        },
    }
    file, line = _place(finding)
    if file:
        inside = _inside(file, folder)
        place: dict[str, Any] = (
            {"uri": inside, "uriBaseId": "ROOT"} if inside else {"uri": Path(file).as_uri()}
        )
        physical = {"artifactLocation": place, "region": {"startLine": line}}
        result["locations"] = [{"physicalLocation": physical}]
    if finding.accepted:
        result["suppressions"] = [{"kind": "external", "justification": finding.accepted}]
    return result


def render_annotations(reports: Sequence[Findings], root: Path | None = None) -> str:
    """Return one command of a GitHub workflow for each finding that fails, at its line.

    Arguments:
        reports: what was checked.
        root: the folder that paths are relative to; the working directory if ``None``.

    Example:
        >>> render_annotations([])
        ''
    """
    folder = Path.cwd() if root is None else root
    lines = []
    for report in reports:
        for finding in report.problems:
            file, line = _place(finding)
            title = f"{report.function.rpartition(':')[2]}: {finding.clause}"
            fields = {"title": f"{title} {finding.verdict.value}"}
            if file:
                fields = {"file": _inside(file, folder) or file, "line": str(line), **fields}
            shown = ",".join(f"{key}={_escape(value, ',:')}" for key, value in fields.items())
            lines.append(f"::error {shown}::{_escape(_message(report, finding))}\n")
    return "".join(lines)


def _message(report: Findings, finding: Finding) -> str:
    said = SIGNS[finding.verdict].label
    lines = [f"{report.function}: {finding.clause} {said}. {finding.detail}"]
    told = ("expected", "got", "mend")
    lines += [f"{label.title()}: {text}" for label, text in finding.facts if label in told]
    return "\n".join(lines)


def _place(finding: Finding) -> tuple[str, int]:
    """The absolute file and the line of a finding; an empty text where there is no file."""
    file, colon, line = finding.source.rpartition(":")
    if not colon or not line.isdigit():
        file, line = finding.source, "1"
    return (os.path.abspath(file), int(line)) if file else ("", 1)


def _inside(file: str, folder: Path) -> str:
    """The path of a file from a folder that holds it, or an empty text."""
    try:
        return Path(os.path.realpath(file)).relative_to(folder.resolve()).as_posix()
    except ValueError:
        return ""


def _portable(function: str, folder: Path) -> str:
    home, _, qualname = function.rpartition(":")
    return f"{_inside(home, folder) if os.path.isabs(home) else home}:{qualname}"


def _escape(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
