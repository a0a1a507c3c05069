"""`Baseline`: the findings that a team knows and accepts, in a file kept beside the code.

The file is TOML, one table for each finding, in the order of their names, so that it reads well in
a review and two branches merge. A script is named by its path from the folder of the file.
"""

import json
import os
import tomllib
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pullback.errors import ArgumentError
from pullback.report._findings import Verdict
from pullback.report._report import Report

__all__ = ["Baseline"]

_HEAD = """\
# Findings of `pullback check` that are known and accepted. One that is given a reason does not fail
# the check; new ones do, and those that are "not looked into yet".
# `pullback check --baseline FILE --update-baseline` writes this file anew.
"""
_NO_REASON = "not looked into yet"
_UNCHECKED = "unchecked"

_Key = tuple[str, str, str]


@dataclass(frozen=True)
class Baseline:
    """Accepted findings.

    Arguments:
        path: the file.
        reasons: function, clause and verdict -> why it is accepted; for a Function that could not
            be checked the clause is empty and the verdict ``"unchecked"``.

    Example:
        >>> from pullback.report import Finding, Verdict
        >>> known = Baseline(Path("pullback.toml"), {("a:F", "leak", "broken"): "upstream #7"})
        >>> found = Finding("leak", Verdict.BROKEN, "it leaks")
        >>> report = Report("a:F", "exact", False, (found,), 0)
        >>> report.ok, known.accept(report).ok
        (False, True)
    """

    path: Path
    reasons: dict[_Key, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, clauses: Container[str] | None = None) -> "Baseline":
        """Read a file; one that is not there accepts nothing.

        Arguments:
            path: the file.
            clauses: those that a finding may be of; any if ``None``.

        Raises:
            ArgumentError: it is not a baseline.
        """
        if not path.exists():
            return cls(path)
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
            entries = [_read_entry(item, clauses) for item in data["accepted"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArgumentError(
                f"{path} is not a baseline.",
                given=f"{type(error).__name__}: {error}",
                expected='tables [[accepted]] with "function", "clause", "verdict" and "reason"',
                mend="Mend it, or remove it and write it anew: --update-baseline",
            ) from error
        return cls(path, dict(entries))

    def accept(self, report: Report) -> Report:
        """The report with the reason at each finding that is accepted."""
        findings = tuple(
            replace(finding, accepted=self._reason(self._key(report, finding)))
            if finding.verdict.is_bad
            else finding
            for finding in report
        )
        return replace(report, findings=findings)

    def accepts_unchecked(self, function: str) -> str:
        """Why a Function that could not be checked is accepted, or an empty text."""
        return self._reason((self._name(function), "", _UNCHECKED))

    @property
    def without_reason(self) -> list[str]:
        """Entries that nobody has given a reason yet, one line each; they accept nothing."""
        return [
            " ".join(filter(None, key)) for key in sorted(self.reasons) if not self._reason(key)
        ]

    def _reason(self, key: _Key) -> str:
        reason = self.reasons.get(key, "")
        return "" if reason == _NO_REASON else reason

    def stale(self, reports: Sequence[Report], unchecked: Iterable[str]) -> list[str]:
        """Entries that nothing found any more, one line each.

        Arguments:
            reports: what was checked in this run; entries of other Functions may still be true.
            unchecked: the names of the Functions that could not be checked.
        """
        _, stale = self._compared(reports, unchecked)
        return [" ".join(filter(None, key)) for key in stale]

    def updated(self, reports: Sequence[Report], unchecked: Iterable[str]) -> "Baseline":
        """A baseline that accepts what was found in this run, with the reasons that it had."""
        found, stale = self._compared(reports, unchecked)
        kept = {key: reason for key, reason in self.reasons.items() if key not in stale}
        return Baseline(self.path, {**dict.fromkeys(found, _NO_REASON), **kept})

    def render(self) -> str:
        """The text of the file."""
        blocks = [_HEAD]
        for (function, clause, verdict), reason in sorted(self.reasons.items()):
            fields = {"function": function, "clause": clause, "verdict": verdict, "reason": reason}
            # A string of JSON is one of TOML.
            lines = [
                f"{name} = {json.dumps(value, ensure_ascii=False)}"
                for name, value in fields.items()
                if value
            ]
            blocks.append("\n".join(["[[accepted]]", *lines]) + "\n")
        return "\n".join(blocks) if self.reasons else f"{_HEAD}\naccepted = []\n"

    def _compared(
        self, reports: Sequence[Report], unchecked: Iterable[str]
    ) -> tuple[set[_Key], list[_Key]]:
        """What was found, and the entries that were looked at and not found, in their order."""
        judged = [(self._key(report, item), item) for report in reports for item in report]
        found = {(self._name(name), "", _UNCHECKED) for name in unchecked}
        found |= {key for key, item in judged if item.verdict.is_bad}
        looked_at = {key[:2] for key in (*found, *(key for key, _ in judged))}
        looked_at |= {(self._name(report.function), "") for report in reports}
        stale = [key for key in sorted(self.reasons) if key[:2] in looked_at and key not in found]
        return found, stale

    def _key(self, report: Report, finding: Any) -> _Key:
        return self._name(report.function), finding.clause, finding.verdict.value

    def _name(self, function: str) -> str:
        """The name with the path of a script as seen from the folder of the file."""
        home, colon, qualname = function.rpartition(":")
        if not os.path.isabs(home):
            return function
        folder = os.path.dirname(os.path.abspath(self.path))
        return Path(os.path.relpath(home, folder)).as_posix() + colon + qualname


def _read_entry(item: dict[str, Any], clauses: Container[str] | None) -> tuple[_Key, str]:
    clause, verdict, reason = item.get("clause", ""), item["verdict"], item["reason"]
    key = (item["function"], clause, verdict)
    if not all(type(value) is str for value in (*key, reason)):
        raise TypeError("a value that is no text")
    verdicts = [each.value for each in Verdict if each.is_bad] if clause else [_UNCHECKED]
    if verdict not in verdicts:
        raise ValueError(f"the verdict {verdict!r}, where it may be {' or '.join(verdicts)}")
    if clause and clauses is not None and clause not in clauses:
        raise ValueError(f"there is no clause {clause!r}")
    if not reason.strip():
        raise ValueError(f"no reason for {' '.join(filter(None, key))}")
    return key, reason
