"""Constraints: what every new version of a text must satisfy."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from pullback.errors import ArgumentError, ReplyError
from pullback.text._prompts import shorten
from pullback.text._templates import fields_of

__all__ = ["Constraint", "check_constraints", "keeps_fields", "max_length", "never"]


@dataclass(frozen=True)
class Constraint:
    """What every new version of a text must satisfy.

    Arguments:
        text: the constraint in words, as the model is told.
        check: given the new text, says what is wrong, or None. Without it the model is told and
            nothing is checked.

    Example:
        >>> polite = Constraint("Polite.", lambda text: None if "please" in text else "it is rude")
    """

    text: str
    check: Callable[[str], str | None] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise ArgumentError("A constraint needs words.", given=repr(self.text))


def max_length(characters: int) -> Constraint:
    """At most so many characters.

    Example:
        >>> max_length(3).check("abcd")
        'it has 4 characters'
    """
    return Constraint(
        f"It has at most {characters} characters.",
        lambda text: f"it has {len(text)} characters" if len(text) > characters else None,
    )


def never(pattern: str, text: str = "") -> Constraint:
    """Nowhere what a regular expression finds.

    Arguments:
        pattern: the regular expression.
        text: the same in words.

    Example:
        >>> never("[0-9]", "No digits.").check("in 2 days")
        "it has '2' in it"
    """
    compiled = re.compile(pattern)

    def check(value: str) -> str | None:
        found = compiled.search(value)
        return f"it has {found.group(0)!r} in it" if found else None

    return Constraint(text or f"Nothing in it matches {pattern!r}.", check)


def keeps_fields(template: str) -> Constraint | None:
    """The same fields in braces as this template, if only none; None for what is no template.

    Example:
        >>> keeps_fields("Say {word}.").check("Say it.")
        'it has the fields (none) instead of {word}'
    """
    try:
        fields = fields_of(template)
    except ArgumentError:
        return None
    wanted = ", ".join(f"{{{name}}}" for name in fields) or "(none)"

    def check(value: str) -> str | None:
        try:
            given = fields_of(value)
        except ArgumentError as error:
            return f"it is no template: {error.what} {error.given or ''}"
        if sorted(given) == sorted(fields):
            return None
        found = ", ".join(f"{{{name}}}" for name in given) or "(none)"
        return f"it has the fields {found} instead of {wanted}"

    return Constraint(f"It has just these fields, each in braces: {wanted}.", check)


def check_constraints(value: str, constraints: list[Constraint]) -> str:
    """The new text, if it satisfies them.

    Raises:
        ReplyError: it does not, or is empty.
    """
    if not value.strip():
        raise ReplyError("The new text is empty.", expected="a text")
    for constraint in constraints:
        wrong = constraint.check(value) if constraint.check else None
        if wrong:
            raise ReplyError(
                f"The new text breaks a constraint: {wrong}.",
                given=shorten(repr(value), 200), expected=constraint.text,
            )  # fmt: skip
    return value
