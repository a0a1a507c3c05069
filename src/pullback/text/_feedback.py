"""Read the feedback that a critic wrote, strictly."""

import re

from pullback.errors import ReplyError
from pullback.text._replies import shorten

__all__ = ["read_feedback"]

_PART = re.compile(r'<FEEDBACK id="([^"]*)">(.*?)</FEEDBACK>', re.DOTALL)


def read_feedback(answer: str, count: int) -> list[str]:
    """What a critic's answer says to each part; empty where it says nothing.

    Arguments:
        answer: ``<FEEDBACK id="0">...</FEEDBACK>`` for each part, in any order.
        count: how many parts there are.

    Raises:
        ReplyError: a part is missing, there twice, or unknown.

    Example:
        >>> read_feedback('<FEEDBACK id="0">Be brief.</FEEDBACK>', 1)
        ['Be brief.']
    """
    found: dict[str, str] = {}
    for number, text in _PART.findall(answer):
        if number in found:
            raise ReplyError(
                "The critic speaks of a part twice.", given=f"id={number!r}", expected="once each"
            )
        found[number] = text.strip()
    expected = [str(number) for number in range(count)]
    if sorted(found) != sorted(expected):
        raise ReplyError(
            "The critic does not speak of just the parts that it was asked about.",
            given=f"{', '.join(found) or 'none'} in {shorten(repr(answer), 200)}",
            expected=f'<FEEDBACK id="...">...</FEEDBACK> for each id of {", ".join(expected)}',
        )
    return [found[number] for number in expected]
