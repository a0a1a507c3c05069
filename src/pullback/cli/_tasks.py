"""`Task`: one Function to check, wherever it comes from, and `Outcome`: what became of it.

What was seen of a program's training is one outcome more.
"""

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pullback.conformance import Call, Ranks, bind
from pullback.errors import PullbackError
from pullback.internal._defaults import set_defaults
from pullback.internal._secrets import mask_secrets
from pullback.internal._text import command_line
from pullback.recording import (
    KINDS,
    ParameterFinding,
    RecordedFunction,
    Recording,
    Training,
    calls_on_ranks,
    why_no_call,
)
from pullback.report import Finding, Report, Verdict, clean

__all__ = ["TRAINING", "Outcome", "Task", "on_rank", "tasks_of_recording", "training_outcome"]


T = TypeVar("T")

_ON_RANKS = 2  # calls: each starts processes

Loaded = tuple[Any, list[Call]]


@dataclass(frozen=True)
class Task:
    """A Function and the calls to check it with."""

    name: str  # ``"package.module:Name"``
    load: Callable[[], Loaded]  # returns the Function and the arguments of each call
    rerun: tuple[str, ...]  # the words of the command that checks it alone again
    gradient: str | None = None  # the declared intent, if any
    isolated: bool = True  # whether it runs in a process of its own unless asked otherwise
    reason: str = ""  # why it cannot be checked at all, or an empty text
    guessed: bool = False  # whether nobody gave the arguments: they were found by trial
    ran: Sequence[str] = ()  # what of it ran in the program that was recorded
    # returns the Function and the calls that all ranks of a program have made at once
    ranks: Callable[[], tuple[Any, list[Ranks]]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "load", _alone(self.load))
        object.__setattr__(self, "ranks", self.ranks and _alone(self.ranks))

    def rerun_line(self, options: Sequence[str] = ()) -> str:
        """The command line that checks this Function alone again, with these options."""
        return command_line(["pullback", "check", *self.rerun, *options])


_LOADING = threading.RLock()


def _alone(load: Callable[[], T]) -> Callable[[], T]:
    """What loads as others do not meanwhile, and without the warnings of the imported packages.

    Filters of warnings are of the whole process; and where threads import the modules of a package
    that import one another, Python ends some of them with an error.
    """

    def loaded() -> T:
        with _LOADING, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load()

    return loaded


@dataclass
class Outcome:
    """What became of a task: a report, or the reason why there is none."""

    name: str
    report: Report | None = None
    reason: str = ""  # why there is no report
    rerun: str = ""  # the command line that checks it alone again
    # the arguments that were found by trial, as an expression; else an empty text
    guessed: str = ""
    accepted: str = ""  # why it is known that it cannot be checked, from a baseline
    training: bool = False  # whether it is of a program's training, not of a Function

    def __post_init__(self) -> None:
        self.name, self.reason = clean(self.name), clean(self.reason)

    @property
    def unchecked(self) -> str:
        """Why it was not checked, or not whole; an empty text if it was."""
        return self.reason if self.report is None else self.report.unchecked


def tasks_of_recording(recording: Recording, path: str) -> list[Task]:
    """A task of every recorded Function; those without a replayable call carry the reason."""
    return [_task(item, path) for item in recording]


def _task(item: RecordedFunction, path: str) -> Task:
    reason = "" if item.calls else why_no_call(item.reasons)
    # A call that the program never differentiates says less than one that it does.
    # Every rank shows the same of what it does by itself.
    one = [k for k, call in enumerate(item.calls) if not call.place or call.place[0] == 0]
    chosen = [k for k in one if item.calls[k].differentiates]
    numbers = tuple(chosen or one)

    def arguments(number: int) -> Call:
        return item.arguments(number, os.path.abspath(path) if path else "")

    def function() -> Any:
        set_defaults(*item.defaults)  # of the program, for all that is checked here
        return item.load()

    def load() -> Loaded:
        return function(), list(map(arguments, numbers))

    together = calls_on_ranks(item)[:_ON_RANKS]

    def ranks() -> tuple[Any, list[Ranks]]:
        return function(), [
            Ranks(
                len(calls), lambda rank, calls=calls: on_rank(item.load(), arguments(calls[rank]))
            )
            for calls in together
        ]

    words = (path, "--only", item.name, *item.loader.flags)
    ran = ("forward", "backward") if item.answered else ("forward",)
    return Task(item.name, load, words, reason=reason, ran=ran, ranks=ranks if together else None)


def on_rank(function: Any, call: Call) -> tuple[Any, ...]:
    """The arguments that a rank is given, all of them by their places.

    Raises:
        PullbackError: one has none.
    """
    args, keywords = bind(function, call)
    if keywords:
        raise PullbackError("It takes arguments by keyword only.", given=", ".join(keywords))
    return tuple(args)


_SHOWN = 8  # parameters of one kind
# A parameter that is in no loss makes no number wrong; the others train as nobody meant.
_VERDICTS = {"unused": Verdict.UNTIDY}
_MENDS = {
    "cut": "Let the gradient through, or take the parameter out of the optimiser.",
    "unused": "Use it, or take it out: requires_grad_(False), or not in the optimiser.",
    "zero": "Begin elsewhere than where the derivative is zero, or give it a gradient.",
    "not finite": "Keep that operation away from where its derivative is infinite.",
    "not held": "Give it to an optimiser, or freeze it: requires_grad_(False).",
    "replaced": "Make the optimiser after the last change of the model.",
    "no gradient": "Call backward() before the step, and zero_grad() before backward().",
}


def _clause(kind: str) -> str:
    """The name of a kind of finding about a program's training, as the clauses have theirs."""
    return kind.replace(" ", "-")


TRAINING = tuple(map(_clause, KINDS))


def training_outcome(
    training: Training, program: Sequence[str], options: Sequence[str] = ()
) -> list[Outcome]:
    """The report of a program's training, run with options; nothing where no optimiser steps."""
    name = f"training of {command_line(mask_secrets(list(program)))}"
    if not training.steps:
        return []
    found = tuple(_finding(kind, training) for kind in KINDS)
    rerun = command_line(["pullback", "check", *options, "--", *mask_secrets(list(program))])
    report = Report(name, "", False, found, 0, unjudged=training.fault)
    return [Outcome(name, report, rerun=rerun, training=True)]


def _finding(kind: str, training: Training) -> Finding:
    clause = _clause(kind)
    items = [item for item in training.findings if item.kind == kind]
    enough, _ = KINDS[kind]
    if not items and training.steps < enough:
        return Finding(clause, Verdict.SKIPPED, f"it takes {enough} steps to tell")
    if not items:
        return Finding(clause, Verdict.HOLDS, f"no parameter in {training.steps} steps")
    places: dict[str, list[ParameterFinding]] = {}
    for item in items:
        places.setdefault(" at ".join(filter(None, (item.operation, item.place))), []).append(item)
    told = "; ".join(_told(where, some) for where, some in places.items())
    return Finding(
        clause, _VERDICTS.get(kind, Verdict.BROKEN), f"{told}.", source=items[0].place,
        hint=_MENDS[kind],
    )  # fmt: skip


def _told(where: str, items: list[ParameterFinding]) -> str:
    names = [item.name for item in items]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    said = f"{', '.join(names[:_SHOWN])}{more}: {KINDS[items[0].kind][1]}, {items[0].detail}"
    return f"{said} ({where})" if where else said
