"""`Task`: one Function to check, wherever it comes from, and what became of it."""

import inspect
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pullback.conformance._recording import RecordedFunction, Recording
from pullback.conformance._replayed import name_functions
from pullback.conformance._report import Report
from pullback.errors import PullbackError

__all__ = ["Outcome", "Task", "tasks_of_recording"]

Loaded = tuple[Any, list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Task:
    """A Function and the calls to check it with.

    Arguments:
        name: ``"package.module:Name"``.
        load: returns the Function and the arguments of each call.
        gradient: the declared intent, or ``None``.
        rerun: the words of the command that checks it alone again.
        isolated: whether it runs in a process of its own unless asked otherwise.
        reason: why it cannot be checked at all, or an empty text.
        recording: the file that holds its calls, or an empty text.
        numbers: the numbers of its calls there.
        script: the script that defines it, or an empty text.
    """

    name: str
    load: Callable[[], Loaded]
    rerun: tuple[str, ...]
    gradient: str | None = None
    isolated: bool = True
    reason: str = ""
    recording: str = ""
    numbers: tuple[int, ...] = ()
    script: str = ""

    def rerun_line(self, seed: int) -> str:
        """The command line that checks this Function alone again."""
        words = ["pullback", "check", *self.rerun]
        if seed:
            words.extend(["--seed", str(seed)])
        return shlex.join(words)


@dataclass
class Outcome:
    """What became of a task: a report, or the reason why there is none."""

    task: Task
    report: Report | None = None
    reason: str = ""
    rerun: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the Function."""
        return self.task.name


def tasks_of_recording(recording: Recording, path: str) -> list[Task]:
    """Make a task of every recorded Function.

    Arguments:
        recording: what a program applied, or what was found by trial.
        path: the file that holds it, for the rerun line.

    Returns:
        One task for each Function; those without a replayable call carry the reason.
    """
    return [_task(item, path) for item in recording]


def _task(item: RecordedFunction, path: str) -> Task:
    reason = ""
    if not item.calls:
        counted = [f"{text} ({count} calls)" for text, count in item.reasons.items()]
        reason = "; ".join(counted) or "no call of it succeeded"
    # A call that the program never differentiates says less than one that it does.
    chosen = [k for k, call in enumerate(item.calls) if call.differentiates]
    numbers = tuple(chosen or range(len(item.calls)))

    def load() -> Loaded:
        function = item.load()
        calls = []
        for number in numbers:
            args = _positional(item.name, function, *item.calls[number].live(item.identity))
            calls.append(name_functions(args, os.path.abspath(path), item.name, number))
        return function, calls

    rerun = (path, "--only", item.name)
    script = item.identity["file"] if item.identity["module"] == "__main__" else ""
    return Task(
        item.name, load, rerun, reason=reason, recording=path, numbers=numbers, script=script or ""
    )


def _positional(
    name: str, function: Any, args: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Any, ...]:
    """Bind keyword arguments to the places that the forward gives them."""
    if not keywords:
        return args

    signature = inspect.signature(function.forward)
    try:
        bound = signature.bind(*args, **keywords)
    except TypeError as error:
        raise PullbackError(
            f"The recorded arguments do not fit {name} any more.", given=str(error)
        ) from error
    bound.apply_defaults()
    if bound.kwargs:
        raise PullbackError(f"{name} takes arguments by keyword only.", given=str(bound.kwargs))
    return bound.args
