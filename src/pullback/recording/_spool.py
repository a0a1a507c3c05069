"""`Spool`: the files into which a recorded process writes what it applies, while it applies it.

The program's Python need not have pullback: it imports a copy of this file and of what that imports
when it has imported torch, apart from any pullback of its own (``_bootstrap/sitecustomize.py``).

A process may be killed, leave through ``os._exit``, or be a forked worker of a loader: none of
them runs what was meant for the end. So nothing waits for the end: each kept call is a file of its
own, and the counts are in memory that is a file. What a file says of a Function has the form that
it has in a recording.
"""

import atexit
import contextlib
import errno
import importlib
import io
import json
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pullback.internal._defaults import read_defaults
from pullback.internal._launch import Limits
from pullback.internal._when_imported import WhenImported
from pullback.internal.torch import disable_current_modes, temporarily_clear_interpreter_stack
from pullback.recording._live import copy_call, place_of
from pullback.recording._recorder import Call, Record, Recorder
from pullback.recording.codec._encode import Encoder, Traced
from pullback.recording.locator._locator import Locator, absolute
from pullback.recording.training._watch import Training, TrainingWatch

__all__ = [
    "Spool", "described", "read_counts", "record_this_process", "watch_this_process",
]  # fmt: skip

_BYTES = 8
_START = os.urandom(4).hex()  # `os.execv` starts another program in the process of the last
_OWN_BASE = "pullback.tensor._function"  # replaces `apply`, and enters torch below it


def record_this_process(
    directory: str, limits: str, inside: str, guarded: Callable[[Any], Any], *, whole: bool
) -> None:
    """Record this process into ``directory``, with the numbers of `Limits`, commas between.

    ``inside`` is a module whose ``finish(records, directory)`` is run when this process ends, on
    the calls that are kept here: those that cannot be written, or, ``whole``, all. What is guarded
    raises nothing into the program.
    """
    spool = Spool(directory)
    bounds = Limits(*map(int, limits.split(",")))
    if whole:
        recorder = Recorder(copy_call, limits=bounds, changed=spool.describe, guarded=guarded)
    else:
        live = copy_call if inside else None
        recorder = Recorder(spool.copy, spool.keep, bounds, spool.describe, live, guarded=guarded)
    if inside:
        # The compiler needs them: once Python has begun to end, they cannot be imported.
        for name in ("concurrent.futures.process", "concurrent.futures.thread"):
            importlib.import_module(name)
        # At the end torch takes its operators down, by finalizers. They run where the first one
        # that anybody made is registered, and the last to be registered runs first.
        weakref.finalize(recorder, int)
        atexit.register(_finish, recorder, inside, directory, whole=whole)
    spool.recorder = recorder
    spool.renew()
    recorder.install(torch.autograd.Function)
    WhenImported(_OWN_BASE, guarded(lambda own: recorder.install(own.Function)))
    watch_this_process(directory)


def _finish(recorder: Recorder, module: str, directory: str, *, whole: bool) -> None:
    recorder.uninstall()
    recorder.settle()
    os.environ.pop("PULLBACK_RECORD_DIRECTORY", None)  # what the check starts is not recorded
    records = [
        record
        for record in recorder.records.values()
        if whole or (record.calls and not (record.named and record.written))
    ]
    if records:
        importlib.import_module(module).finish(records, directory)


def watch_this_process(directory: str) -> TrainingWatch:
    """Watch how this process trains, and write it as it is known: its end may not come."""

    def write() -> None:
        if os.path.isdir(directory) and (watch.steps or watch.fault):
            found = Training(watch.findings, watch.steps, watch.fault)
            with contextlib.suppress(OSError):  # a full disk must not end the program
                _write_data(directory, "training", asdict(found))

    watch = TrainingWatch(looked=write)
    watch.__enter__()
    atexit.register(write)
    if hasattr(os, "register_at_fork"):  # a loader's worker trains nothing
        os.register_at_fork(after_in_child=watch.leave)
    return watch


class Spool:
    """Writes calls and counts into a directory, for this process and for each that it forks."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._numbers: dict[tuple[int, int], int] = {}
        self.recorder: Any = None  # whose records and counts are written
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Count anew, in a file of this process; a forked one inherits the counts of another."""
        slots = len(self.recorder.tally)
        for record in self.recorder.records.values():
            record.reasons = dict.fromkeys(record.reasons, 0)
        if not os.path.isdir(self._directory):  # the program has ended, its child has not
            self.recorder.tally = [0] * slots
            return
        path = os.path.join(self._directory, f"tally-{_process()}")
        with open(path, "w+b") as file:
            file.write(bytes(slots * _BYTES))  # a hole ends the program where the disk is full
            file.flush()
            self.recorder.tally = memoryview(mmap.mmap(file.fileno(), slots * _BYTES)).cast("Q")
        self.describe()

    def copy(self, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> Call | None:
        """A call as plain data."""
        encoder = Encoder(limit)
        with _plain_torch(), contextlib.suppress(Traced):
            return Call(**encoder.encode_call(args, kwargs), size=encoder.bytes)
        return None

    def keep(self, record: Record, call: Call) -> None:
        """Write one call, in the place of an earlier one of this process that is alike.

        Raises:
            OSError: the disk is full, for example; a file that is empty says so.
        """
        number = self._numbers.setdefault((record.slot, call.number), len(self._numbers) + 1)
        data = {
            "arguments": call.arguments,
            "keywords": call.keywords,
            "tensors": call.tensors,
            "place": place_of(int(self.recorder.tally[record.slot])),
            "pattern": call.pattern,
        }
        written = io.BytesIO()  # torch.save itself does not say why a file cannot be written
        with _plain_torch(), self._telling():
            torch.save(described(record.locator, [data], record.script), written)
            name = f"call-{_process()}-{number:04d}.pt"
            _write_whole(os.path.join(self._directory, name), written.getbuffer())

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """An empty file, for which a full disk has room, tells what could not be written."""
        try:
            yield
        except OSError as error:
            name = f"unwritten-{os.getpid()}-{error.errno or errno.EIO}"
            with contextlib.suppress(OSError), open(os.path.join(self._directory, name), "wb"):
                pass
            raise

    def describe(self) -> None:
        """Write what the counts count, and why calls were not kept."""
        if not os.path.isdir(self._directory):
            return
        found = [
            described(
                record.locator,
                script=record.script,
                reasons=record.reasons,
                slot=record.slot,
                answered=record.answered,
                patterns={name: pattern.slot for name, pattern in record.patterns.items()},
            )
            for record in self.recorder.records.values()
            if not record.ignored
        ]
        with contextlib.suppress(OSError), self._telling():  # the program is not to end for it
            _write_data(self._directory, "counts", found)


def described(
    locator: Locator, calls: Iterable[dict[str, Any]] = (), script: str = "", **more: Any
) -> dict[str, Any]:
    """What is said of a Function, in the form that it has in a recording."""
    paths = [absolute(entry) for entry in sys.path]
    data = {"locator": locator.to_data(), "paths": paths, "script": script, "applied": 0,
            "defaults": read_defaults()}  # fmt: skip
    return {**data, "calls": list(calls), "reasons": {}, **more}


def _process() -> str:
    """The name of this process in those of its files."""
    return f"{os.getpid()}-{_START}"


def _write_data(directory: str, kind: str, data: Any) -> None:
    """Write what this process says of a kind."""
    path = os.path.join(directory, f"{kind}-{_process()}.json")
    _write_whole(path, json.dumps(data).encode())


def read_counts(directory: str | Path) -> Iterator[dict[str, Any]]:
    """What processes have said of their Functions, and how often they applied each."""
    for path in sorted(Path(directory).glob("counts-*.json")):
        tally = path.with_name(path.stem.replace("counts", "tally"))
        counts = memoryview(tally.read_bytes()).cast("Q") if tally.exists() else None
        for item in json.loads(path.read_text(encoding="utf-8")):
            slot, patterns = item.pop("slot", None), item.pop("patterns", {})
            answered = item.pop("answered", 0)
            if counts is not None and slot is not None:
                item["applied"], item["answered"] = counts[slot], counts[answered]
                item["patterns"] = {name: counts[place] for name, place in patterns.items()}
            yield item


def _write_whole(path: str, content: Any) -> None:
    """Write a file beside its place and put it there when it is whole: others read meanwhile."""
    with open(path + ".part", "wb") as file:
        file.write(content)
    os.replace(path + ".part", path)


@contextlib.contextmanager
def _plain_torch() -> Iterator[None]:
    """Leave dispatch modes and torch.func transforms while copying and writing."""
    with temporarily_clear_interpreter_stack(), torch.no_grad(), disable_current_modes():
        yield
