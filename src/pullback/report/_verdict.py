"""`Verdict`: how a Function stands to one clause, and how that is shown everywhere."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["SIGNS", "Sign", "Verdict"]


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
