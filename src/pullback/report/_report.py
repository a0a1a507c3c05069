"""What a check found: `Verdict`, `Finding` and `Report`."""

import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table

from pullback.errors import ArgumentError, BrokenContractError

__all__ = ["Finding", "Report", "Verdict"]


class Verdict(StrEnum):
    """How a Function stands to one clause of the contract.

    Example:
        >>> Verdict("broken") is Verdict.BROKEN
        True
    """

    HOLDS = "holds"
    BROKEN = "broken"
    LACKING = "lacking"
    CRASHES = "crashes"
    SKIPPED = "skipped"

    @property
    def is_bad(self) -> bool:
        """Whether one such finding makes a report not ok: ``broken`` or ``crashes``."""
        return self in (Verdict.BROKEN, Verdict.CRASHES)


@dataclass(frozen=True)
class Finding:
    """How one Function stands to one clause.

    Arguments:
        clause: the stable id of the clause, for example ``"derivative"``.
        verdict: holds, broken, lacking, crashes or skipped.
        detail: one or two sentences that say what was seen, or why the clause was skipped.
        expected: the value or behaviour the clause asks for.
        got: the value or behaviour seen instead.
        input: the path of the input concerned, for example ``"args[0]['w']"``.
        seed: the seed the check ran with.
        hint: how to mend it.
        source: ``file:line`` of the Function.
        repro: a standalone script of at most 15 lines that shows it.

    Example:
        >>> Finding("linear", Verdict.HOLDS, "B(2.5a - 1.5b) = 2.5 B(a) - 1.5 B(b)").ok
        True
    """

    clause: str
    verdict: Verdict
    detail: str
    expected: str = ""
    got: str = ""
    input: str = ""
    seed: int = 0
    hint: str = ""
    source: str = ""
    repro: str = ""

    @property
    def ok(self) -> bool:
        """Whether the finding is neither ``broken`` nor ``crashes``."""
        return not self.verdict.is_bad

    def __str__(self) -> str:
        lines = [f"{self.clause}: {self.verdict.value}. {self.detail}"]
        for label, text in (
            ("input:", self.input),
            ("expected:", self.expected),
            ("got:", self.got),
            ("seed:", "" if self.ok else str(self.seed)),
            ("mend:", self.hint),
            ("source:", "" if self.ok else self.source),
        ):
            if text:
                lines.append(f"  {label:<9} {text}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """Everything a check found about one Function.

    Arguments:
        function: where the Function is found, for example ``"package.module:Name"``.
        gradient: the gradient intent it was checked against.
        inferred: whether that intent was inferred rather than declared.
        findings: one finding for each clause that was run, in the order of the contract.
        seed: the seed of every random choice.
        seconds: how long the check took, in seconds.
        environment: versions and devices, name to text.

    Example:
        >>> report = Report("a:F", "exact", False, (Finding("linear", Verdict.HOLDS, "yes"),), 0)
        >>> report.ok, report["linear"].verdict.value
        (True, 'holds')
    """

    function: str
    gradient: str
    inferred: bool
    findings: tuple[Finding, ...]
    seed: int
    seconds: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether no finding is ``broken`` or ``crashes``."""
        return all(finding.ok for finding in self.findings)

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that are ``broken`` or ``crashes``."""
        return tuple(finding for finding in self.findings if not finding.ok)

    def __getitem__(self, clause: str) -> Finding:
        for finding in self.findings:
            if finding.clause == clause:
                return finding
        raise KeyError(clause)

    def __contains__(self, clause: object) -> bool:
        return any(finding.clause == clause for finding in self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

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
        """Read what `to_json` wrote.

        Arguments:
            text: a JSON object.

        Returns:
            An equal report.

        Raises:
            ArgumentError: the text is not the JSON of a report.

        Example:
            >>> report = Report("a:F", "exact", False, (Finding("form", Verdict.HOLDS, ""),), 3)
            >>> Report.from_json(report.to_json())["form"].verdict.value
            'holds'
        """
        try:
            values: dict[str, Any] = json.loads(text)
            values.pop("ok", None)
            findings = tuple(_read_finding(fields) for fields in values.pop("findings"))
            return cls(findings=findings, **values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ArgumentError(
                "The text is not the JSON of a report.",
                given=f"{text[:60]!r}: {error}",
                expected="what Report.to_json() returned",
            ) from error

    def to_html(self) -> str:
        """The report as one self-contained HTML page.

        Returns:
            The text of the page.

        Example:
            >>> report = Report("a:F", "exact", False, (), 0)
            >>> "a:F" in report.to_html()
            True
        """
        # Found by name: the page is drawn by a module that reads reports, and Jinja2 is needed
        # only by those who ask for one.
        page = importlib.import_module("pullback.conformance._html")
        return page.render([self])

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
            given="\n".join(["", *(str(finding) for finding in self.problems)]),
            expected="every clause holds, or lacks support loudly",
            mend=self.problems[0].hint or None,
        )

    def __str__(self) -> str:
        buffer = StringIO()
        console = Console(
            file=buffer, width=100, emoji=False, force_terminal=False, color_system=None
        )
        console.print(self._heading(), markup=False, highlight=False)
        table = Table(show_edge=False, pad_edge=False)
        for name in ("clause", "verdict", "detail"):
            table.add_column(name, no_wrap=name != "detail", overflow="fold")
        for finding in self.findings:
            table.add_row(finding.clause, finding.verdict.value, _plain(finding.detail))
        console.print(table, highlight=False)
        for finding in self.problems:
            console.print(f"\n{finding}", markup=False, highlight=False, soft_wrap=True)
        return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())

    def _heading(self) -> str:
        state = "ok" if self.ok else f"{len(self.problems)} problem(s)"
        intent = f"{self.gradient} ({'inferred' if self.inferred else 'declared'})"
        return f"{self.function}: {state}, gradient {intent}, seed {self.seed}"


def _read_finding(fields: dict[str, Any]) -> Finding:
    """Build a finding from its JSON object."""
    verdict = Verdict(fields.pop("verdict"))
    return Finding(verdict=verdict, **fields)


def _plain(text: str) -> str:
    """Escape rich's markup, which reads square brackets."""
    return text.replace("[", r"\[")
