"""Record the process of a program, from the moment that it has imported torch.

The program's Python need not have pullback: it imports a copy of this file and of what that
imports, apart from any pullback of its own (``_bootstrap/sitecustomize.py``).
"""

import atexit
import contextlib
import importlib
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from pullback.internal._when_imported import WhenImported
from pullback.recording._recorder import Call, Limits, Recorder
from pullback.recording._spool import Spool, plain_torch, write_data
from pullback.recording.codec._encode import Encoder, Traced
from pullback.recording.training._finding import Training
from pullback.recording.training._watch import TrainingWatch

__all__ = ["record_this_process", "watch_this_process"]

_OWN_BASE = "pullback.tensor._function"  # replaces `apply`, and enters torch below it


def record_this_process(
    directory: str, limits: str, inside: str, guarded: Callable[[Any], Any]
) -> None:
    """Record this process into ``directory``.

    Arguments:
        directory: where calls and counts are written.
        limits: the numbers of `Limits`, with commas between.
        inside: a module whose ``finish(records)`` is run when this process ends, on the calls that
            its ``copy_call`` has kept here; an empty text to write the calls instead.
        guarded: an action that raises nothing into the program.
    """
    spool = Spool(directory)
    bounds = Limits(*map(int, limits.split(",")))
    if inside:
        recorder = Recorder(_copies_of(inside), limits=bounds, changed=spool.describe)
        atexit.register(_finish, recorder, inside)
    else:
        recorder = Recorder(_encode, spool.keep, bounds, spool.describe)
    spool.recorder = recorder
    spool.renew()

    def install(part: Any) -> None:
        recorder.install(part.Function, torch.Tensor)

    install(torch.autograd)
    WhenImported(_OWN_BASE, guarded(install))
    watch_this_process(directory)


def _encode(args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> Call | None:
    """A call as plain data, for a file."""
    encoder = Encoder(limit)
    with plain_torch():
        try:
            call = encoder.encode_call(args, kwargs)
        except Traced:
            return None
    return Call(**call, size=encoder.bytes)


def _copies_of(module: str) -> Callable[[tuple[Any, ...], dict[str, Any], int], Call | None]:
    """How a module keeps the calls of the program in the program's own process."""
    # The compiler needs them: once Python has begun to end, they cannot be imported.
    for name in ("concurrent.futures.process", "concurrent.futures.thread"):
        importlib.import_module(name)
    return lambda *call: importlib.import_module(module).copy_call(*call)


def _finish(recorder: Recorder, module: str) -> None:
    recorder.uninstall()
    os.environ.pop("PULLBACK_RECORD_DIRECTORY", None)  # what the check starts is not recorded
    if recorder.records:
        importlib.import_module(module).finish(recorder.records)


def watch_this_process(directory: str) -> TrainingWatch:
    """Watch how this process trains, and write it as it is known: its end may not come.

    Arguments:
        directory: where to.

    Returns:
        The watch.
    """

    def write() -> None:
        if os.path.isdir(directory) and (watch.steps or watch.fault):
            found = Training(watch.findings, watch.steps, watch.fault)
            with contextlib.suppress(OSError):  # a full disk must not end the program
                write_data(directory, "training", asdict(found))

    watch = TrainingWatch(looked=write)
    watch.__enter__()
    atexit.register(write)
    if hasattr(os, "register_at_fork"):  # a loader's worker trains nothing
        os.register_at_fork(after_in_child=watch.leave)
    return watch
