"""What a search has found: the score after each proposal, and how the texts have changed."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["read_search"]

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 200, 52, 16, 30


def read_search(note: Mapping[str, Any]) -> dict[str, Any]:
    """The search of a run, from the note that a `Trainer` left in the journal.

    Returns:
        How it ended, its steps, its chart, and each text as lines that stayed, went or came.
    """
    texts = [(each["name"], _lines(each["before"], each["after"])) for each in note["texts"]]
    steps = note["steps"]
    return {
        "stopped": note["stopped"], "steps": steps, "texts": texts,
        "chart": _chart(steps) if steps else None,
    }  # fmt: skip


def _lines(before: str, after: str) -> list[tuple[str, str]]:
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [(line[0], line[2:]) for line in lines if line[0] != "?"]


def _chart(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The score of the texts as a line of steps, the proposals as dots, and marks of the axes."""
    scores = [steps[0]["before"]]
    scores += [step["after"] if step["accepted"] else step["before"] for step in steps]
    measured = [step["after"] for step in steps if step["after"] is not None]
    low, high = min([0.0, *scores, *measured]), max([1.0, *scores, *measured])

    def x(number: int) -> float:
        return round(LEFT + (WIDTH - LEFT - 24) * number / len(steps), 1)

    def y(score: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - score) / (high - low), 1)

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
