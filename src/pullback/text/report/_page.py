"""`render_run`: a run as one self-contained HTML page, without any outside resource."""

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from pullback.internal._text import shortened
from pullback.text._prompts import shorten
from pullback.text.lm import Call, Journal, scrub
from pullback.text.lm._call import summarise
from pullback.text.report._drawing import SIZES, draw, read_search

__all__ = ["render_run"]

MOST = 2000  # calls that are shown; the last ones
LONGEST, SHORTEST, SIZE = 20_000, 400, 4_000_000  # characters of a text, and of all of them
_SURROGATE = re.compile("[\ud800-\udfff]")


def render_run(journal: Journal) -> str:
    """A page of a run: its cost by model, its graphs, and each call with prompt and answer.

    Everything that a model or program wrote is escaped, known keys are taken out, and nothing is
    loaded from elsewhere.

    Example:
        >>> import tempfile
        >>> from pullback.text.lm import Record, Scripted
        >>> with Journal(tempfile.mkdtemp() + "/run.sqlite") as journal:
        ...     answer = Record(Scripted(["<b>bold</b>"]), journal)("Hi")
        ...     "&lt;b&gt;bold&lt;/b&gt;" in render_run(journal)
        True
    """
    every, notes = journal.calls(), journal.notes()
    calls = every[-MOST:]
    texts = sum(len(call.request["messages"]) + 1 for call in calls)
    most = max(SHORTEST, min(LONGEST, SIZE // max(texts, 1)))

    def part(text: str) -> str:
        return shorten(text, most)

    def whole(message: Mapping[str, Any]) -> str:
        return part(_message(message))

    environment = Environment(
        loader=PackageLoader("pullback.text.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clock": _clock, "short": _short,
        "message": whole, "part": part,
    }  # fmt: skip
    facts: dict[str, Any] = {
        "name": journal.path.name,
        "program": " ".join(notes.get("program", ())),
        "plans": notes.get("plan", ()),
        "summary": summarise(every),
        "failed": sum(call.failure is not None for call in every),
        "damaged": journal.damaged,
        "calls": calls,
        "left_out": len(every) - len(calls),
        "begun": every[0].begun if every else None,
        "seconds": _seconds(every),
        "search": read_search(notes["search"]) if "search" in notes else None,
        "drawings": _drawings(calls, notes),
        **SIZES,
    }
    page = environment.get_template("run.html.jinja").render(facts)
    return _SURROGATE.sub("\ufffd", scrub(page))  # half a character cannot be written anywhere


def _drawings(calls: Sequence[Call], notes: Mapping[str, Any]) -> list[Any]:
    return [
        draw(name.removeprefix("graph:"), value, calls)
        for name, value in notes.items()
        if name.startswith("graph:")
    ]


def _seconds(calls: Sequence[Call]) -> float:
    ended = [call.ended for call in calls if call.ended is not None]
    return max(ended) - calls[0].begun if ended else 0.0


def _clock(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _short(text: str, most: int = 30) -> str:
    return shortened(" ".join(text.split()), most)


def _message(message: Mapping[str, Any]) -> str:
    """The text of a message; an image is named, not shown, for it may lie elsewhere."""
    content = message["content"]
    if isinstance(content, str):
        parts = [content]
    else:
        parts = [
            block["text"] if block["type"] == "text" else _image(block["image_url"]["url"])
            for block in content
        ]
    for call in message.get("tool_calls", ()):
        parts.append(f"asks {call['function']['name']}({call['function']['arguments']})")
    return "\n".join(parts)


def _image(url: str) -> str:
    return f"[image, {len(url):,} characters]" if url.startswith("data:") else f"[image {url}]"
