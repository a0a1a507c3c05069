"""Several reports in one JSON file, as ``pullback check --json`` writes it, and read back."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pullback.errors import ArgumentError
from pullback.internal._text import clean
from pullback.report._report import Report

__all__ = ["read_reports", "render_json"]


def render_json(
    reports: Sequence[Report],
    *,
    reruns: Mapping[str, str] | None = None,
    not_checked: Sequence[tuple[str, str]] = (),
    not_imported: Sequence[str] = (),
    partial: str = "",
) -> str:
    """Return one JSON object that holds several reports.

    Arguments:
        reports: what was checked.
        reruns: function name -> the command line that checks it alone again.
        not_checked: names of Functions that could not be checked, with the reason.
        not_imported: modules that could not be looked into, one line each.
        partial: why not everything that was asked for is here, or an empty text.

    Returns:
        The text; `read_reports` reads it.

    Example:
        >>> json.loads(render_json([]))["ok"]
        True
    """
    functions: list[dict[str, Any]] = [
        {**json.loads(report.to_json()), "rerun": (reruns or {}).get(report.function, "")}
        for report in reports
    ]
    missing = [{"function": clean(name), "reason": clean(reason)} for name, reason in not_checked]
    data = {
        "ok": all(report.ok for report in reports),
        "partial": partial,
        "functions": functions,
        "not_checked": missing,
        "not_looked_into": [clean(line) for line in not_imported],
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def read_reports(
    paths: Iterable[Path],
) -> tuple[list[Report], dict[str, str], list[tuple[str, str]]]:
    """Read JSON files of ``pullback check --json``.

    Arguments:
        paths: the files.

    Returns:
        The reports; function name -> the command line that checks it again; names of Functions
        that were not checked, with the reason.

    Raises:
        ArgumentError: a file cannot be read or holds something else.

    Example:
        >>> read_reports([])
        ([], {}, [])
    """
    reports: list[Report] = []
    reruns: dict[str, str] = {}
    missing: list[tuple[str, str]] = []
    for path in paths:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            for item in data["functions"]:
                reruns[item["function"]] = item.pop("rerun")
                reports.append(Report.from_json(json.dumps(item)))
            missing.extend((item["function"], item["reason"]) for item in data["not_checked"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArgumentError(
                f"{path} does not hold reports.",
                given=f"{type(error).__name__}: {error}",
                expected="what pullback check --json wrote",
            ) from error
    return reports, reruns, missing
