"""`clean`: a text of the checked code, fit for a terminal, a file and a page."""

import os
import shlex
import unicodedata
from collections.abc import Iterable
from typing import Any

__all__ = ["clean", "clean_within", "command_line", "in_a_line", "printable", "shortened", "shown"]

_LIMIT = 20_000
# Control and format characters (a terminal obeys them), lone surrogates (no file takes them), and
# what has no place in XML.
_REFUSED = ("Cc", "Cf", "Cs")
_HARMLESS = "\n\t"
_NONCHARACTERS = "\ufffe\uffff"


def clean(text: str) -> str:
    r"""Write out what a terminal would obey and a file would refuse, and cut what is endless.

    Arguments:
        text: any text, such as the message of an error or the name of a class.

    Returns:
        Printable characters, spaces, tabs and line breaks only.

    Example:
        >>> clean("red \x1b[31m, alone \ud800")
        'red \\x1b[31m, alone \\ud800'
    """
    if len(text) > _LIMIT:
        text = f"{text[:_LIMIT]}... ({len(text) - _LIMIT} characters more)"
    return printable(text)


def printable(text: str) -> str:
    """As `clean`, but whole, as a script has to be.

    Example:
        >>> len(printable("x" * 30_000))
        30000
    """
    if text.isprintable():
        return text
    return "".join(_written_out(character) for character in text)


def clean_within(value: Any) -> Any:
    r"""What `clean` makes of every text within lists, tuples and dicts.

    Example:
        >>> clean_within({"a": ["\u202e", 3]})
        {'a': ['\\u202e', 3]}
    """
    if type(value) is str:
        return clean(value)
    if isinstance(value, dict):
        return {clean_within(key): clean_within(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_within(item) for item in value]
    return value


def in_a_line(text: str) -> str:
    r"""As `printable`, of a name that may hold line breaks too.

    Example:
        >>> in_a_line("a\nb")
        'a\\nb'
    """
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def command_line(words: Iterable[str]) -> str:
    r"""As `shlex.join`, on one line that a terminal shows and a shell reads back to the letter.

    Example:
        >>> print(command_line(["cat", "a file", "caf\udce9\n"]))
        cat 'a file' $'caf\351\012'
    """
    return " ".join(shlex.quote(w) if w.isprintable() else _by_bytes(w) for w in words)


def shortened(text: str, most: int = 80) -> str:
    """The beginning of a text, of so many characters at most.

    Example:
        >>> shortened("a long text", 6)
        'a lon…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def shown(value: Any, most: int = 80) -> str:
    """A value as code, shortened; of a type whose repr is broken, its name."""
    try:
        text = repr(value)
    except Exception:  # any type may have a broken repr
        text = f"an instance of {type(value).__qualname__}"
    return shortened(text, most)


def _written_out(character: str) -> str:
    if character in _HARMLESS:
        return character
    if unicodedata.category(character) in _REFUSED or character in _NONCHARACTERS:
        return _escaped(character)
    return character


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _by_bytes(word: str) -> str:
    plain = set(range(32, 127)) - set(b"\\'")
    letters = (chr(b) if b in plain else rf"\{b:03o}" for b in os.fsencode(word))
    return f"$'{''.join(letters)}'"
