"""`render_run`: a run as one self-contained HTML page, without any outside resource."""

import difflib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from pullback.internal._arguments import checked
from pullback.internal._text import shortened
from pullback.text._prompts import shorten
from pullback.text.lm import Call, Journal, Message, scrub
from pullback.text.lm._completion import summarise

__all__ = ["render_run"]


WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 210, 62, 60, 18, 12
CHART_WIDTH, CHART_HEIGHT, LEFT, TOP, BOTTOM = 720, 200, 52, 16, 30
BOXES = 400  # boxes; a page with more shows nothing to a reader


def draw(name: str, text: str, calls: Sequence[Call]) -> dict[str, Any]:
    """Lay a graph out in columns, from the leaves on the left to the roots.

    It is what `tape.graph.to_json` wrote: every node before those that it follows from. A node
    whose value is the answer of one of the calls is taken for its step.
    """
    nodes = json.loads(text)["nodes"]
    followed = [[edge[0] for edge in node["next"] if edge is not None] for node in nodes]
    order = list(reversed(range(len(nodes))))
    column = [0] * len(nodes)
    for node in order:
        column[node] = 1 + max((column[below] for below in followed[node]), default=-1)
    first = [len(nodes)] * len(nodes)  # a leaf stands beside the first step that takes it
    for node in order:
        for leaf in [below for below in followed[node] if not followed[below]]:
            first[leaf] = min(first[leaf], column[node])
            column[leaf] = first[leaf] - 1
    shown = order[:BOXES]
    rows: Counter[int] = Counter()
    places: dict[int, tuple[int, int]] = {}
    for node in shown:
        x = MARGIN + column[node] * (WIDTH + GAP_X)
        places[node] = (x, MARGIN + rows[column[node]] * (HEIGHT + GAP_Y))
        rows[column[node]] += 1
    free = list(calls)
    boxes = tuple(_box(nodes, node, places[node], free) for node in shown)
    paths = tuple(
        _path(places[below], places[node])
        for node in shown for below in followed[node] if below in places
    )  # fmt: skip
    width = 2 * MARGIN + (max(column[node] for node in shown) + 1) * (WIDTH + GAP_X) - GAP_X
    height = 2 * MARGIN + max(rows.values()) * (HEIGHT + GAP_Y) - GAP_Y
    return {"name": name, "boxes": boxes, "paths": paths, "width": width, "height": height,
            "left_out": len(order) - len(shown)}  # fmt: skip


def _box(nodes: list[Any], number: int, place: tuple[int, int], free: list[Call]) -> dict[str, Any]:
    node = nodes[number]
    data = next((each["data"] for each in node["outputs"] if each["data"] is not None), None)
    role = next((each["role"] for each in node["outputs"] if each["role"]), "")
    leaf = node["name"] == "AccumulateGrad"
    call = None if leaf else _call(nodes, node, data, free)
    if call is not None:
        free.remove(call)  # equal answers belong to different steps
    title = "leaf" if leaf else node["name"].removesuffix("Backward")
    notes = tuple((note["function"], note["text"]) for note in node.get("notes", ()))
    text = "" if data is None else str(data)
    if data is None and call is not None and call.answer is not None:
        asked = [f"{each.name}({each.arguments})" for each in call.answer.tool_calls]
        text = " ".join([call.answer.text, *asked]).strip()
    return {"x": place[0], "y": place[1], "title": title, "role": role, "text": text,
            "leaf": leaf, "call": call, "notes": notes}  # fmt: skip


def _call(nodes: list[Any], node: Any, data: Any, free: list[Call]) -> Call | None:
    """The call that a step made: its text is the answer, or its inputs were asked about.

    A graph keeps no structures; what gave fields, or asked for tools, is known by its inputs.
    """
    answered = [call for call in free if call.answer is not None]
    if isinstance(data, str) and data:
        return next((call for call in answered if call.answer and call.answer.text == data), None)
    if data is not None or node["name"] != "ChatBackward":
        return None
    given = [nodes[edge[0]]["outputs"][edge[1]]["data"] for edge in node["next"] if edge]
    texts = [text for text in given if isinstance(text, str)]
    for call in answered:
        asked = "\n".join(Message.from_dict(each).text for each in call.request["messages"])
        if call.request.keys() & {"schema", "tools"} and all(text in asked for text in texts):
            return call
    return None


def _path(start: tuple[int, int], end: tuple[int, int]) -> str:
    x, y = start[0] + WIDTH, start[1] + HEIGHT // 2
    to_x, to_y = end[0], end[1] + HEIGHT // 2
    bend = max((to_x - x) // 2, GAP_X // 2)
    return f"M{x},{y} C{x + bend},{y} {to_x - bend},{to_y} {to_x - 4},{to_y}"


def read_search(note: Mapping[str, Any]) -> dict[str, Any]:
    """The search of a run: how it ended, its steps and chart, and each text line by line."""
    texts = [(each["name"], _lines(each["before"], each["after"])) for each in note["texts"]]
    steps = note["steps"]
    return {
        "stopped": note["stopped"], "steps": steps, "texts": texts,
        "chart": _chart(steps) if steps else None,
    }  # fmt: skip


def _lines(before: str, after: str) -> list[tuple[str, str]]:
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        return [(" ", line) for line in new]
    lines = difflib.unified_diff(old, new, n=len(old) + len(new), lineterm="")
    return [(line[0], line[1:]) for line in list(lines)[3:]]  # but for its head


def _chart(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The score of the texts as a line of steps, the proposals as dots, and marks of the axes."""
    scores = [steps[0]["before"]]
    scores += [step["after"] if step["accepted"] else step["before"] for step in steps]
    measured = [step["after"] for step in steps if step["after"] is not None]
    low, high = min([0.0, *scores, *measured]), max([1.0, *scores, *measured])

    def x(number: int) -> float:
        return round(LEFT + (CHART_WIDTH - LEFT - 24) * number / len(steps), 1)

    def y(score: float) -> float:
        return round(TOP + (CHART_HEIGHT - TOP - BOTTOM) * (high - score) / (high - low), 1)

    line = f"M{x(0)},{y(scores[0])}" + "".join(
        f" H{x(number)} V{y(score)}" for number, score in enumerate(scores[1:], 1)
    )
    dots = [
        {"x": x(number), "y": y(step["after"]), "accepted": step["accepted"],
         "reason": step["reason"]}
        for number, step in enumerate(steps, 1) if step["after"] is not None
    ]  # fmt: skip
    heights = [(y(value), f"{value:g}") for value in (low, (low + high) / 2, high)]
    every = -(-len(steps) // 12)
    numbers = [(x(number), f"{number}") for number in range(0, len(steps) + 1, every)]
    return {"line": line, "dots": dots, "heights": heights, "numbers": numbers}


MOST = 2000  # calls that are shown; the last ones
LONGEST, SHORTEST, SIZE = 20_000, 400, 4_000_000  # characters of a text, and of all of them
_SURROGATE = re.compile("[\ud800-\udfff]")


@checked
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
    ended = [call.ended for call in every if call.ended is not None]
    environment = Environment(
        loader=PackageLoader("pullback.text.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "short": lambda text, size: shortened(" ".join(text.split()), size),
        "part": lambda text: shorten(text, most),
        "message": lambda message: shorten(_message(message), most),
    }  # fmt: skip
    environment.filters |= filters
    facts: dict[str, Any] = {
        "name": journal.path.name,
        "program": " ".join(notes.get("program", ())),
        "plans": notes.get("plan", ()),
        "summary": summarise(every),
        "failed": sum(call.failure is not None for call in every),
        "damaged": journal.damaged,
        "calls": calls,
        "left_out": len(every) - len(calls),
        "begun": datetime.fromtimestamp(every[0].begun, UTC) if every else None,
        "seconds": max(ended) - every[0].begun if ended else 0.0,
        "search": read_search(notes["search"]) if "search" in notes else None,
        "drawings": [
            draw(name.removeprefix("graph:"), value, calls)
            for name, value in notes.items()
            if name.startswith("graph:")
        ],
        "box": {"width": WIDTH, "height": HEIGHT},
        "chart": {"width": CHART_WIDTH, "height": CHART_HEIGHT, "left": LEFT},
    }
    page = environment.get_template("run.html.jinja").render(facts)
    return _SURROGATE.sub("\ufffd", scrub(page))  # half a character cannot be written anywhere


def _message(message: Mapping[str, Any]) -> str:
    """The text of a message; an image is named, not shown, for it may lie elsewhere."""
    content, parts = message["content"], []
    blocks: Any = [{"text": content}] if isinstance(content, str) else content
    for block in blocks:
        url = block.get("image_url", {}).get("url", "")
        named = f"[image, {len(url):,} characters]" if url.startswith("data:") else f"[image {url}]"
        parts.append(block.get("text", named))
    for call in message.get("tool_calls", ()):
        parts.append(f"asks {call['function']['name']}({call['function']['arguments']})")
    return "\n".join(parts)
