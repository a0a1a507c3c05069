"""Reports that ``pullback check --json`` wrote, read back and put together.

Example:
    >>> reports, reruns, missing = read_reports([])
    >>> reports, reruns, missing
    ([], {}, [])
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pullback.conformance._html import render
from pullback.conformance._printing import print_table
from pullback.conformance._report import Report
from pullback.errors import ArgumentError

__all__ = ["print_table", "read_reports", "write_page"]


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


def write_page(
    path: Path,
    reports: Sequence[Report],
    reruns: Mapping[str, str],
    missing: Sequence[tuple[str, str]],
    *,
    command: str,
) -> None:
    """Write one self-contained HTML page of several checks.

    Arguments:
        path: the file to write.
        reports: what was checked.
        reruns: function name -> the command line that checks it again.
        missing: names of Functions that were not checked, with the reason.
        command: what was run, for the head of the page.
    """
    page = render(reports, not_checked=missing, command=command, reruns=reruns)
    path.write_text(page, encoding="utf-8")
