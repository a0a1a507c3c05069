"""`Verdict`, `Finding` and `Findings`: what was found about one Function, without a face."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum

from pullback.internal._text import clean, printable

__all__ = ["SIGNS", "Finding", "Findings", "Sign", "Verdict"]


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
    UNTIDY = "untidy"
    SKIPPED = "skipped"

    @property
    def is_bad(self) -> bool:
        """Whether one such finding makes a report not ok: ``broken`` or ``crashes``."""
        return self in (Verdict.BROKEN, Verdict.CRASHES)


@dataclass(frozen=True)
class Sign:
    """How a verdict is drawn and explained.

    Arguments:
        glyph: one character.
        plain: one ASCII character, for a terminal that has no other.
        style: the style of the terminal, as rich names it.
        label: the verdict in two or three words, for a legend.
        meaning: what the verdict says, in full.
        junit: the tag of JUnit XML, or an empty text where the case simply passes; what stands
            in ``system-out`` passes with a remark.
    """

    glyph: str
    plain: str
    style: str
    label: str
    meaning: str
    junit: str = ""


# The worst first: reports are ordered and merged by it.
SIGNS: dict[Verdict, Sign] = {
    Verdict.BROKEN: Sign(
        "✗", "x", "bold red", "broken, silently",
        "a wrong number, a leak or a mutation, with no error", "failure",
    ),
    Verdict.CRASHES: Sign(
        "!", "!", "bold magenta", "crashes",
        "an unclear error, or the process dies or hangs", "error",
    ),
    Verdict.UNTIDY: Sign(
        "~", "~", "cyan", "untidy, mended by torch",
        "the numbers are right because torch mends them", "system-out",
    ),
    Verdict.LACKING: Sign(
        "○", "o", "yellow", "lacking, refused clearly", "refused with a clear error", "skipped"
    ),
    Verdict.HOLDS: Sign("✓", "+", "green", "holds", "tested and kept"),
    Verdict.SKIPPED: Sign("·", ".", "dim", "does not apply", "does not apply here", "skipped"),
}  # fmt: skip


# What is wrong in a first gradient wherever it is asked, whoever else does what.
_FIRST_GRADIENT = ("derivative", "linear")
_BEYOND_TRAINING = ("saved", "double", "once", "forward", "forward-over-forward", "transforms",
                    "vmap", "compositions", "autocast", "rank")  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """How one Function stands to one clause.

    Arguments:
        clause: the stable id of the clause, for example ``"derivative"``.
        verdict: holds, untidy, broken, lacking, crashes or skipped.
        detail: one or two sentences that say what was seen, or why the clause was skipped.
        expected: the value or behaviour the clause asks for.
        got: the value or behaviour seen instead.
        input: the path of the input concerned, for example ``"args[0]['w']"``.
        seed: the seed the check ran with.
        hint: how to mend it.
        source: ``file:line`` of the Function.
        repro: a short standalone script that shows it.
        why: what the clause is good for, where the finding needs to say so.
        accepted: the reason why it is known and does not count, from a baseline.
        entries: a table of the entries expected and got, shown on request.
        cause: the clause whose finding has the same cause, where there is one; it counts as before,
            and is told of in one line.
        fails: what ends in no answer, where that is found: plain ``"forward"`` or ``"backward"``
            raises, or ``"time"`` is up; or what alone is wrong, a compiled ``"transform"``.

    Every text is made printable: it may come from the checked code.

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
    why: str = ""
    accepted: str = ""
    entries: str = ""
    cause: str = ""
    fails: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdict", Verdict(self.verdict))  # a text where it was data
        for field_ in fields(self):
            value = getattr(self, field_.name)
            if type(value) is str:
                made = printable if field_.name == "repro" else clean  # a script is whole or none
                object.__setattr__(self, field_.name, made(value))

    @property
    def ok(self) -> bool:
        """Whether the finding is neither ``broken`` nor ``crashes``, or is accepted."""
        return not self.verdict.is_bad or bool(self.accepted)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What there is to show beside the detail: a label and a text each."""
        facts = (("input", self.input), ("expected", self.expected), ("got", self.got),
                 ("mend", self.hint), ("source", "" if self.ok else self.source))  # fmt: skip
        return [(label, text) for label, text in facts if text]

    def __str__(self) -> str:
        seed = [] if self.ok else [("seed", str(self.seed))]
        lines = [f"  {f'{label}:':<9} {text}" for label, text in [*self.facts, *seed]]
        return "\n".join([f"{self.clause}: {self.verdict.value}. {self.detail}", *lines])


@dataclass(frozen=True)
class Findings:
    """Everything that was found about one Function: the data of a `Report`, described there."""

    function: str
    gradient: str
    inferred: bool
    findings: tuple[Finding, ...]
    seed: int
    seconds: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)
    constants: tuple[str, ...] = ()
    unfinished: str = ""
    without: tuple[str, ...] = ()
    unjudged: str = ""
    guessed: str = ""
    cut_down: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("function", "unfinished", "unjudged", "guessed"):
            object.__setattr__(self, name, clean(getattr(self, name)))
        for name in ("constants", "cut_down"):
            object.__setattr__(self, name, tuple(map(clean, getattr(self, name))))

    def __bool__(self) -> bool:
        return self.ok

    @property
    def ok(self) -> bool:
        """Whether no finding is ``broken`` or ``crashes``, but for those that are accepted."""
        return all(finding.ok for finding in self.findings)

    @property
    def unchecked(self) -> str:
        """Why not all was shown that was asked, or an empty text."""
        if self.unfinished or self.unjudged:
            return "; ".join(text for text in (self.unfinished, self.unjudged) if text)
        if any(finding.verdict is not Verdict.SKIPPED for finding in self.findings):
            return ""
        said = self.findings[0].detail if self.findings else "no clause was run"
        return f"nothing was shown: {said}"

    @property
    def intent(self) -> str:
        """The gradient intent in words, or an empty text where no rule was judged."""
        how = "inferred" if self.inferred else "declared"
        return f"gradient {self.gradient} ({how})" if self.gradient else ""

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that are ``broken`` or ``crashes`` and that no baseline accepts.

        The `causes` come first.
        """
        causes = self.causes
        return (*causes, *(finding for finding in self._bad if finding not in causes))

    @property
    def _bad(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.ok]

    @property
    def causes(self) -> tuple[Finding, ...]:
        """The problems but for those that have the cause of another one, the gravest first.

        Plain training comes before other uses of gradients, what is wrong at any numbers before
        what is at special ones, what is silent before what is loud, what an author may have meant
        and not declared last. What earlier calls have left is in all numbers, so that it comes
        before these. A wrong first gradient comes before what takes a change in place, a
        second call or a cycle to do harm, and what has most consequences before the others.
        """
        own = [f for f in self._bad if not (f.cause and self._is_told(f.cause))]
        return tuple(sorted(own, key=self._gravity))

    def _gravity(self, finding: Finding) -> tuple[int, ...]:
        """The lower, the graver."""
        return (
            finding.clause in _BEYOND_TRAINING or finding.fails == "transform",
            finding.clause == "values",
            finding.verdict is not Verdict.BROKEN,
            finding.clause == "leak",  # memory, where others are wrong numbers
            finding.clause == "linear" and self.gradient == "nonlinear",
            finding.clause != "first-call",  # what earlier calls left is in all other numbers
            finding.clause not in _FIRST_GRADIENT,
            -sum(f.cause == finding.clause for f in self._bad),
        )  # fmt: skip

    def _is_told(self, clause: str) -> bool:
        return any(f.clause == clause and not f.cause for f in self._bad)

    def same_cause(self, finding: Finding) -> str:
        """One line that names the clauses that fail for the cause of a finding, or nothing."""
        others = [f.clause for f in self._bad if f.cause == finding.clause]
        if not others:
            return ""
        clauses = (
            "1 other clause fails" if len(others) == 1 else f"{len(others)} other clauses fail"
        )
        return f"{clauses} for the same cause: {', '.join(others)}."

    @property
    def accepted(self) -> tuple[Finding, ...]:
        """The findings that a baseline accepts."""
        return tuple(finding for finding in self.findings if finding.accepted)

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

    @property
    def rank(self) -> tuple[object, ...]:
        """Sorts by the gravest cause, then broken first, then crashing, then by name."""
        verdicts = [finding.verdict for finding in self.findings]
        gravest = self._gravity(self.causes[0])[:3] if self.causes else (2,)
        counts = verdicts.count(Verdict.BROKEN), verdicts.count(Verdict.CRASHES)
        return *gravest, -counts[0], -counts[1], self.function
