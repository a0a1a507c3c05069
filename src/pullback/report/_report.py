"""`Report`: what a check found about one Function, with all its faces; several, as JSON."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import fill, indent
from typing import Any

from pullback.errors import BrokenContractError
from pullback.internal._arguments import reading
from pullback.internal._text import clean
from pullback.report._findings import SIGNS, Finding, Findings, Verdict
from pullback.report._page import render_notebook, render_page

__all__ = ["Report", "merge_reports", "read_reports", "render_json"]


_WORST_FIRST = list(SIGNS)
_WEAKEST_LAST = ("", "exact", "surrogate", "nonlinear")


@dataclass(frozen=True)
class Report(Findings):
    """Everything a check found about one Function.

    Arguments:
        function: where the Function is found, for example ``"package.module:Name"``.
        gradient: the gradient intent it was checked against, or an empty text where no rule was.
        inferred: whether that intent was inferred rather than declared.
        findings: one finding for each clause that was run, in the order of the contract.
        seed: the seed of every random choice.
        seconds: how long the check took, in seconds.
        environment: versions and devices, name to text.
        constants: paths of the floating inputs that were not differentiated.
        unfinished: why not every clause was run, or an empty text.
        without: ids of the clauses that were left out on request.
        unjudged: what of the arguments nothing is known of, or an empty text.
        guessed: the arguments, where they were guessed, or an empty text.
        cut_down: the tensors that were judged at smaller sizes, since those given are large.

    A report is true where it is ok.

    Example:
        >>> report = Report("a:F", "exact", False, (Finding("linear", Verdict.HOLDS, "yes"),), 0)
        >>> report.ok, report["linear"].verdict.value
        (True, 'holds')
    """

    def to_json(self) -> str:
        """The report as JSON text; `Report.from_json` reads it back.

        Returns:
            A JSON object with the fields of the report and ``"ok"``.

        Example:
            >>> report = Report("a:F", "exact", False, (), 0)
            >>> Report.from_json(report.to_json()) == report
            True
        """
        return json.dumps({**asdict(self), "ok": self.ok}, indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Read what `to_json` wrote, as an equal report.

        Raises:
            ArgumentError: the text is not the JSON of a report.

        Example:
            >>> report = Report("a:F", "exact", False, (Finding("form", Verdict.HOLDS, ""),), 3)
            >>> Report.from_json(report.to_json())["form"].verdict.value
            'holds'
        """
        with reading("JSON of a report", text, "what Report.to_json() returned"):
            values: dict[str, Any] = json.loads(text)
            values.pop("ok", None)
            findings = tuple(Finding(**fields) for fields in values.pop("findings"))
            for name in ("constants", "without", "cut_down"):
                values[name] = tuple(values.get(name, ()))
            return cls(findings=findings, **values)

    def to_html(self) -> str:
        """The report as one self-contained HTML page.

        Example:
            >>> report = Report("a:F", "exact", False, (), 0)
            >>> "a:F" in report.to_html()
            True
        """
        return render_page([self])

    def _repr_html_(self) -> str:
        """What a notebook shows where a report is the last value of a cell."""
        return render_notebook(self)

    def raise_if_broken(self) -> None:
        """Raise when a clause is broken or crashes; do nothing when the report is ok.

        Raises:
            BrokenContractError: with each such finding, its mend and the seed.

        Example:
            >>> Report("a:F", "exact", False, (), 0).raise_if_broken()
        """
        if self.ok:
            return
        names = ", ".join(finding.clause for finding in self.problems)
        raise BrokenContractError(
            f"{self.function} breaks its contract: {names}.",
            given="\n".join(["", *(self._told(finding) for finding in self.causes)]),
            expected="every clause holds, or lacks support loudly",
            mend=self.causes[0].hint or None,
        )

    def _told(self, finding: Finding) -> str:
        others = self.same_cause(finding)
        return f"{finding}\n  {others}" if others else str(finding)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, *, verbose: bool = False) -> str:
        """The report as plain text, for a terminal of 100 columns.

        Arguments:
            verbose: with every clause and finding, the tables of entries and the scripts; without,
                one finding for each cause, and the clauses that are kept by name.

        Example:
            >>> print(Report("a:F", "exact", False, (Finding("form", Verdict.HOLDS, ""),), 3))
            a:F: ok, gradient exact (declared), seed 3
            holds: form
        """
        if verbose:
            return self._in_full()
        parts = [self._heading()]
        for finding in self.causes:
            parts += ["", self._told(finding)]
            if finding.repro:
                parts.append(f"  script:   report[{finding.clause!r}].repro")
        if not self.ok:
            parts.append("")
        for verdict in Verdict:
            names = [f.clause for f in self.findings if f.verdict is verdict and f.ok]
            if names:
                parts.append(
                    fill(f"{verdict.value}: {', '.join(names)}", 100, subsequent_indent="  ")
                )
        if not self.ok:
            parts.append("In full: report.to_text(verbose=True)")
        return "\n".join(parts)

    def _in_full(self) -> str:
        wide = max((len(finding.clause) for finding in self.findings), default=0) + 2
        parts = [self._heading(), ""]
        for finding in self.findings:
            head = f"{finding.clause:<{wide}}{finding.verdict.value:<9}{finding.detail}"
            parts.append(fill(head, 100, subsequent_indent=" " * (wide + 9)))
        for finding in self.problems:
            parts += ["", str(finding)]
            for label, text in (("entries", finding.entries), ("script", finding.repro.rstrip())):
                parts += [f"  {label}:", indent(text, "    ")] if text else []
        return "\n".join(parts)

    def _heading(self) -> str:
        state = "ok" if self.ok else f"{len(self.problems)} problem(s)"
        parts = [f"{self.function}: {state}", *filter(None, [self.intent]), f"seed {self.seed}"]
        told = {"constants": self.constants, "judged": self.cut_down, "without": self.without}
        parts += [f"{label} {', '.join(names)}" for label, names in told.items() if names]
        return ", ".join([*parts, *filter(None, [self.unchecked])])


def merge_reports(reports: Sequence[Report]) -> Report:
    """Put the reports of several calls of one Function together, the worst of each clause.

    Arguments:
        reports: at least one, of the same Function.

    Returns:
        A report whose finding for each clause is the most serious one, naming its call; of several
        the first that shows numbers. Where intents were inferred, and differ, those count that
        show the weakest: it is the Function's, and the others were judged by one that is not.
    """
    weakest = max((report.gradient for report in reports), key=_WEAKEST_LAST.index)
    reports = [report for report in reports if not report.inferred or report.gradient == weakest]
    first = reports[0]
    if len(reports) == 1:
        return first
    findings = []
    for clause in dict.fromkeys(item.clause for report in reports for item in report):
        found = [(k, report[clause]) for k, report in enumerate(reports) if clause in report]
        number, worst = min(
            found, key=lambda pair: (_WORST_FIRST.index(pair[1].verdict), not pair[1].expected)
        )
        findings.append(_named_call(worst, number, len(reports)))
    return replace(
        first,
        findings=tuple(findings),
        seconds=sum(report.seconds for report in reports),
        # An input is a constant where no call differentiates it.
        constants=tuple(
            path for path in first.constants if all(path in report.constants for report in reports)
        ),
        unjudged=next((report.unjudged for report in reports if report.unjudged), ""),
        unfinished=next((report.unfinished for report in reports if report.unfinished), ""),
    )


def _named_call(finding: Finding, number: int, count: int) -> Finding:
    if finding.ok:
        return finding
    return replace(finding, detail=f"{finding.detail} (call {number + 1} of {count})")


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
        with reading("file of reports", path, "what pullback check --json wrote"):
            data = json.loads(path.read_text(encoding="utf-8"))
            for item in data["functions"]:
                reruns[item["function"]] = item.pop("rerun")
                reports.append(Report.from_json(json.dumps(item)))
            missing.extend((item["function"], item["reason"]) for item in data["not_checked"])
    return reports, reruns, missing
