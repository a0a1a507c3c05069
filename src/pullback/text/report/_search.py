"""What a search has found: the score after each proposal, and how the texts have changed."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Chart", "Dot", "Search", "read_search"]

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 200, 52, 16, 30


@dataclass(frozen=True)
class Dot:
    """One proposal that was measured: where it is, whether it was kept, and why."""

    x: float
    y: float
    accepted: bool
    reason: str


@dataclass(frozen=True)
class Chart:
    """The score of the texts as a line of steps, the proposals as dots, and marks of the axes."""

    line: str
    dots: tuple[Dot, ...]
    heights: tuple[tuple[float, str], ...]
    numbers: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Search:
    """A search: how it ended, its proposals, and each text as lines that stayed, went or came."""

    stopped: str
    steps: tuple[Mapping[str, Any], ...]
    chart: Chart | None
    texts: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


def read_search(note: Mapping[str, Any]) -> Search:
    """The search of a run, from the note that a `Trainer` left in the journal."""
    texts = tuple(
        (text["name"], _lines(text["before"], text["after"])) for text in note["texts"]
    )  # fmt: skip
    steps = tuple(note["steps"])
    return Search(note["stopped"], steps, _chart(steps) if steps else None, texts)


def _lines(before: str, after: str) -> tuple[tuple[str, str], ...]:
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return tuple((line[0], line[2:]) for line in lines if line[0] != "?")


def _chart(steps: tuple[Mapping[str, Any], ...]) -> Chart:
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
    dots = tuple(
        Dot(x(number), y(step["after"]), step["accepted"], step["reason"])
        for number, step in enumerate(steps, 1)
        if step["after"] is not None
    )
    heights = tuple((y(value), f"{value:g}") for value in (low, (low + high) / 2, high))
    every = -(-len(steps) // 12)
    numbers = tuple((x(number), f"{number}") for number in range(0, len(steps) + 1, every))
    return Chart(line, dots, heights, numbers)
