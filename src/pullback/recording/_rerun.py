"""`rerun_call`: a call that a program makes, with its objects as they are, for a script.

What no name leads to, a class that a function makes for example, and objects without a plain form
are there while their program runs, and nowhere else. So it runs again, to its end: a check in the
program's own process takes place there, with all that has been trained until then.
"""

import multiprocessing
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from pullback.errors import RecordingError
from pullback.internal._as_main import run_as_main
from pullback.internal._secrets import mask_secrets
from pullback.recording._live import copy_call
from pullback.recording._recorder import Record, Recorder
from pullback.recording.codec import Keywords
from pullback.tensor import Function

__all__ = ["live_calls", "rerun_call"]

_here: dict[str, Record] = {}  # what this process has applied, where it is the program itself


def live_calls(
    record: Record, numbers: Iterable[int], folder: str
) -> list[tuple[Sequence[Any], Mapping[str, Any]]]:
    """Calls that this process has made, each with how a script has it again.

    Arguments:
        record: of the Function.
        numbers: which of its calls.
        folder: in which the program was started.
    """
    name, words = record.locator.name, _program()
    _here[name] = record
    calls: list[tuple[Sequence[Any], Mapping[str, Any]]] = []
    for number in numbers:
        call, what = record.calls[number], f"{words!r}, {name!r}, {number}, folder={folder!r}"
        calls.append((call.arguments, Keywords(call.keywords, f"rerun_call({what})" * bool(words))))
    return calls


def rerun_call(
    program: Sequence[str], name: str, number: int = 0, *, folder: str = "."
) -> tuple[Any, tuple[Any, ...]]:
    """Run a program again, in this process, and return a Function and the arguments of a call.

    It draws the numbers that it drew where it seeds its generators. Where it does not end by
    itself, Ctrl-C ends it.

    Arguments:
        program: a script, or ``-m`` and a module, and its arguments.
        name: the Function as a report writes it.
        number: which of the calls that are kept of it.
        folder: in which the program is started.

    Raises:
        RecordingError: it makes no such call.
    """
    record = _here.get(name) or _applied(program, folder).get(name)
    if record is None or number >= len(record.calls):
        raise RecordingError(
            f"The program has made no call {number} of {name}.", given=shlex.join(program),
            mend="Check it again: pullback check -- python ...",
        )  # fmt: skip
    return record.function, tuple(record.calls[number].arguments)


def _program() -> list[str]:
    """What Python was told to run here; empty where that is no script and no module of its own."""
    count = len(sys.argv)
    before, *words = sys.orig_argv[-count - 1 :]
    if words[1:] != sys.argv[1:] or before == "-c" or multiprocessing.parent_process() is not None:
        return []
    return mask_secrets(["-m", *words] if before == "-m" else words)


def _applied(program: Sequence[str], folder: str) -> dict[str, Record]:
    """What a program applies, of each name what it applies first."""
    recorder, process = Recorder(copy_call), os.getpid()
    for base in (torch.autograd.Function, Function):
        recorder.install(base)
    try:
        os.chdir(folder)
        run_as_main(program)
    except (SystemExit, KeyboardInterrupt):
        if os.getpid() != process:  # a copy that it has made
            raise
    finally:
        recorder.uninstall()
    recorder.settle()
    records = [record for record in recorder.records.values() if record.calls]
    return {record.locator.name: record for record in reversed(records)}
