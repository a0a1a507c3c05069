"""Run a part of a clause in a copy of the process, so that code which ends it ends the copy only.

A compiled kernel that is handed a fake tensor reads memory that is not there. A fork costs some
ten milliseconds, where a fresh process takes seconds to import torch.
"""

import faulthandler
import os
import pickle
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch

from pullback.internal._work_time import WorkTime

__all__ = ["ProcessDied", "can_fork", "forked"]

_SECONDS = 20.0
_POLL = 0.2


class ProcessDied(Exception):
    """The copy of the process ended without an answer."""


class _Stuck(Exception):
    """The copy waits, perhaps for a lock that another thread of the original holds."""


def forked(work: Callable[[], Any], seconds: float = _SECONDS) -> Any:
    """The plain data that ``work`` returns, from a copy of this process where one can be made.

    Arguments:
        work: takes nothing, returns plain data; what it changes is lost.
        seconds: how long the copy may work.

    Returns:
        Its answer.

    Raises:
        ProcessDied: the copy was killed, or ended without an answer. One that gives none in time
            is given up, and the work is done here.

    Example:
        >>> forked(lambda: [1, 2])
        [1, 2]
    """
    if not can_fork():
        return work()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(work, writer)
    os.close(writer)
    try:
        return pickle.loads(_listen(reader, child, seconds))  # noqa: S301 - what our own copy wrote
    except _Stuck:
        return work()
    finally:
        os.close(reader)


def can_fork() -> bool:
    """Whether a copy can go on: no device is in use, which no copy shares.

    Example:
        >>> isinstance(can_fork(), bool)
        True
    """
    return sys.platform == "linux" and not torch.cuda.is_initialized()


def _answer(work: Callable[[], Any], writer: int) -> None:
    """In the copy: work, write the answer, and end without any clean-up of the original's."""
    faulthandler.disable()  # the death of the copy is told by its verdict
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        with os.fdopen(writer, "wb") as stream:
            stream.write(pickle.dumps(work()))
    except BaseException:
        os._exit(1)
    os._exit(0)


def _listen(reader: int, child: int, seconds: float) -> bytes:
    """Every byte the copy writes, until it ends."""
    parts: list[bytes] = []
    work = WorkTime(child)
    try:
        while True:
            while not select.select([reader], [], [], _POLL)[0]:
                if work.seconds > seconds:
                    raise _Stuck
            part = os.read(reader, 2**16)
            if not part:
                break
            parts.append(part)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        raise ProcessDied(f"The process was killed by {signal.Signals(os.WTERMSIG(status)).name}.")
    if not parts:
        raise ProcessDied("The process ended without an answer.")
    return b"".join(parts)
