"""Functions are checked in the program's own process, with its objects as they are.

All of them with ``--inside``, else those whose calls no recording can hold. The program runs this
file: `finish` at the end of each of its processes, on the calls that are kept there. Each Function
is checked once, by the process that comes first: in copies of it, or, where no copy can compute, in
itself.
"""

import json
import os
import signal
import sys
import zlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pullback.cli._options import REQUEST, CheckOptions
from pullback.cli._record import Ran
from pullback.cli._run import run_tasks
from pullback.cli._signals import note
from pullback.cli._tasks import Loaded, Outcome, Task, on_rank
from pullback.cli._words import say
from pullback.conformance import Ranks, can_copy
from pullback.errors import ProgramError
from pullback.internal._files import write_whole
from pullback.internal._processes import STOP
from pullback.internal._secrets import mask_secrets
from pullback.internal._text import command_line
from pullback.internal.torch import pytree
from pullback.recording import Record, Recording, live_calls, why_no_call
from pullback.report import Report, make_console

__all__ = ["answered", "checked_inside", "finish"]

_LOST = "the process that applied it was killed, or left by os._exit, before its end"


def checked_inside(options: CheckOptions, ran: Ran) -> list[Outcome]:
    """What a program, which has run, has found at its end of all that it applied.

    Raises:
        ProgramError: the program failed, or applied no Function.
    """
    recording, failure = ran
    if failure is not None and STOP.is_set():
        say(failure.what)
    elif failure is not None:
        if not (failure.interrupted and recording.answers):
            raise failure
        note(signal.SIGINT)
    if not (len(recording) or STOP.is_set()):
        raise ProgramError("The program applied no custom torch.autograd.Function.")
    names = [i.name for i in recording if options.only is None or options.only in i.name]
    return answered(recording, names, options)


def answered(recording: Recording, names: Iterable[str], options: CheckOptions) -> list[Outcome]:
    """What the program's own processes have found of Functions."""
    outcomes = []
    for name in names:
        answer = recording.answers.get(name, {"report": "", "reason": _LOST})
        report = Report.from_json(answer["report"]) if answer["report"] else None
        words = ["pullback", "check", "--inside", "--only", name, *options.rerun]
        words += [*options.run_again, "--"]
        again = command_line([*words, *mask_secrets(options.program or [])])
        outcomes.append(Outcome(name, report, answer["reason"], again))
    return outcomes


def finish(records: Iterable[Record], directory: str) -> None:
    """Check what this process has applied, and write down what was found."""
    request, folder = json.loads(os.environ[REQUEST]), Path(directory)
    only = request["only"] or ""
    if not folder.is_dir():  # who asked has ended
        return
    console = make_console(stderr=True)
    isolate = "copy" if can_copy() else False  # no copy has a device, or its threads of autograd
    for record in records:
        name = record.locator.name
        if not record.ignored and only in name and _claim(folder, name):
            sys.stdout.flush()
            task = _task(record, request["folder"])
            [outcome] = run_tasks([task], console, isolate=isolate, **request["how"])
            _answer(folder, name, outcome)


def _claim(folder: Path, name: str) -> bool:
    """Whether this process is the first that has something to say of a Function."""
    try:
        (folder / f"{zlib.crc32(name.encode()):08x}.claim").open("x").close()
    except FileExistsError:
        return False
    return True


def _task(record: Record, folder: str) -> Task:
    # As of a recording: a call that asks for no gradient says less than one that does.
    every = range(len(record.calls))
    chosen = [k for k in every if record.calls[k].pattern.strip("0")] or every
    reason = "" if chosen else why_no_call(record.reasons)
    if sys.version_info[:2] == (3, 12):
        reason = "Python 3.12 starts no process while it ends, as --inside needs"
    name, function = record.locator.name, record.function
    together = [call for call in record.calls if call.ranks > 1]
    if any(
        isinstance(v, dist.ProcessGroup)
        for c in together
        for v in pytree.tree_leaves((c.arguments, c.keywords))
    ):
        reason = "its process group holds no copies of a rank: check it without --inside"

    def load() -> Loaded:
        return function, live_calls(record, chosen, folder)

    def ranks() -> tuple[Any, list[Ranks]]:
        if dist.is_initialized():  # the program has ended, and this process is to be no rank
            dist.destroy_process_group()
        return function, [
            Ranks(c.ranks, partial(_shard, on_rank(function, (c.arguments, c.keywords))))
            for c in together
        ]

    return Task(name, load, (), reason=reason, ranks=ranks if together else None)


def _shard(args: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    """What a rank is given: the numbers of this one in another order, so that no two are alike."""

    def turned(value: Any) -> Any:
        if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
            return value
        moved = value.detach().flatten().roll(rank).view(value.shape)
        return moved.requires_grad_(value.requires_grad)

    return pytree.tree_map(turned, args)


def _answer(folder: Path, name: str, outcome: Outcome) -> None:
    report = outcome.report.to_json() if outcome.report is not None else ""
    data = {"name": name, "report": report, "reason": outcome.reason}
    write_whole(folder / f"answer-{zlib.crc32(name.encode()):08x}.json", json.dumps(data))
