"""Edits: what changes in a text, said so that it can be carried out.

An edit is a text with one change a line, each at a character of the text before::

    at 4 replace "cat" with "dog"
    at 9 delete " very"
    at 20 insert "."

The empty edit changes nothing. `edit_between` and `apply_edit` are exact inverses, and neither
asks a model. An edit in free words needs a model to carry it out: see `use_editor`.
"""

import contextlib
import difflib
import json
import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from pullback.errors import ArgumentError, UnsupportedError

__all__ = ["apply_edit", "current_editor", "edit_between", "is_exact", "use_editor"]

_STRING = r'"(?:[^"\\]|\\.)*"'
_CHANGE = re.compile(
    rf"at (\d+) (?:replace ({_STRING}) with ({_STRING})|delete ({_STRING})|insert ({_STRING}))"
)
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_editor: ContextVar[Any] = ContextVar("pullback.text.editor", default=None)


def edit_between(before: str, after: str) -> str:
    """The edit that turns one text into another, word by word.

    Example:
        >>> edit_between("the cat sat", "the dog sat")
        'at 4 replace "cat" with "dog"'
    """
    old, new = _TOKEN.findall(before), _TOKEN.findall(after)
    places = [0]
    for token in old:
        places.append(places[-1] + len(token))
    lines = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, start, end, from_, to in matcher.get_opcodes():
        gone, come = _quote("".join(old[start:end])), _quote("".join(new[from_:to]))
        what = {
            "replace": f"replace {gone} with {come}",
            "delete": f"delete {gone}",
            "insert": f"insert {come}",
        }.get(tag)
        if what is not None:
            lines.append(f"at {places[start]} {what}")
    return "\n".join(lines)


def is_exact(edit: str) -> bool:
    """Whether an edit says exactly what changes, so that no model is needed."""
    return all(_CHANGE.fullmatch(line) for line in edit.splitlines())


def apply_edit(text: str, edit: str) -> str:
    """A text after an exact edit.

    Raises:
        ArgumentError: what the edit speaks of is not there, or its changes overlap.
        UnsupportedError: the edit is in free words.

    Example:
        >>> apply_edit("the cat sat", 'at 4 replace "cat" with "dog"')
        'the dog sat'
    """
    if not is_exact(edit):
        raise UnsupportedError(
            "An edit in free words needs a model that carries it out.", given=repr(edit[:80]),
            mend="Give the edit that edit_between makes, or run it inside use_editor(lm).",
        )  # fmt: skip
    pieces: list[str] = []
    place = 0
    for line in edit.splitlines():
        match = _CHANGE.fullmatch(line)
        if match is None:
            continue
        at, old, new, deleted, inserted = match.groups()
        start = int(at)
        gone = _unquote(old or deleted or '""')
        if start < place or text[start : start + len(gone)] != gone or start > len(text):
            raise ArgumentError(
                "An edit does not fit the text.", given=line,
                expected=f"{text[start : start + 40]!r} at {start}",
            )  # fmt: skip
        pieces += [text[place:start], _unquote(new or inserted or '""')]
        place = start + len(gone)
    return "".join([*pieces, text[place:]])


@contextlib.contextmanager
def use_editor(lm: Any) -> Iterator[None]:
    """Let a model carry out edits in free words inside.

    Arguments:
        lm: a `pullback.text.lm.LM`.
    """
    token = _editor.set(lm)
    try:
        yield
    finally:
        _editor.reset(token)


def current_editor() -> Any:
    """The model that carries out edits in free words here, or None."""
    return _editor.get()


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)


def _unquote(text: str) -> str:
    return str(json.loads(text))
