"""JSON as texts that can be compared, and JSON that somebody else wrote."""

import json
from collections.abc import Iterator
from typing import Any

from pullback.errors import ReplyError
from pullback.internal._text import shortened

__all__ = ["canonical", "parse_json", "parse_object"]

SEARCHED = 20_000  # characters, for JSON among words


def canonical(value: Any) -> str:
    """The one JSON text of a value: ASCII, keys sorted, no spaces, no NaN; equal in any process."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parse_json(text: str, what: str, kind: type | None = None) -> Any:
    """Read JSON that a model wrote.

    Arguments:
        text: what it wrote; a Markdown fence around it is taken off.
        what: what this is, for the message.
        kind: the type that it must have, for example ``dict``.

    Raises:
        ReplyError: it is no JSON, or of another kind.
    """
    bare = text.strip()
    if bare.startswith("```") and bare.endswith("```") and "\n" in bare:
        bare = bare.split("\n", 1)[1].removesuffix("```").strip()
    try:
        value = json.loads(bare)
    except (ValueError, RecursionError) as error:
        raise ReplyError(
            f"The model did not write JSON as {what}.",
            given=f"{shortened(text, 200)!r} ({error})", expected="one JSON value",
        ) from None  # fmt: skip
    if kind is not None and not isinstance(value, kind):
        raise ReplyError(f"The model wrote another kind of JSON as {what}.",
                         given=repr(shortened(text, 200)), expected=kind.__name__)  # fmt: skip
    return value


def parse_object(text: str, what: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """Read the one JSON object with these keys that a model wrote, alone or among other words.

    Raises:
        ReplyError: there is none, or there are two that differ.
    """
    try:
        return parse_json(text, what, kind=dict)
    except ReplyError:
        found = [each for each in _objects(text[:SEARCHED]) if all(key in each for key in keys)]
        if not found:
            raise
        if any(each != found[0] for each in found):
            raise ReplyError(
                f"The model wrote more than one JSON object as {what}.",
                given=repr(shortened(text, 200)), expected="one",
            ) from None  # fmt: skip
        return found[0]


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text, those inside of others left out."""
    decoder, place = json.JSONDecoder(), text.find("{")
    while place >= 0:
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            end = place + 1
        else:
            yield value
        place = text.find("{", end)
