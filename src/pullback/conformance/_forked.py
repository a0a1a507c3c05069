"""Copies of this process: what they run ends none but the copy, and starts from how it was made.

A compiled kernel that is handed a fake tensor reads memory that is not there. A fork costs some
ten milliseconds, where a fresh process takes seconds to import torch.
"""

import faulthandler
import os
import pickle
import select
import signal
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from pullback.internal._work_time import WorkTime

__all__ = ["Copy", "ProcessDied", "Stuck", "can_fork", "forked"]

_SECONDS = 20.0
_POLL = 0.2


class ProcessDied(Exception):
    """The copy of the process ended without an answer."""


class Stuck(Exception):
    """The copy waits, perhaps for a lock that another thread of the original holds."""


class Copy:
    """A copy of this process as it is now, which waits until it is asked.

    Arguments:
        work: takes nothing, returns plain data; what it changes is lost.

    Example:
        >>> seen = [1]
        >>> copy = Copy(lambda: len(seen))
        >>> seen.append(2)
        >>> copy.ask()
        1
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        waiting, ask = os.pipe()
        self._reader, writer = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(ask)
            os.close(self._reader)
            if not os.read(waiting, 1):
                os._exit(0)
            _answer(work, writer)
        os.close(waiting)
        os.close(writer)
        self._ask = ask
        self._end = weakref.finalize(self, _dismiss, os.getpid(), self._child, ask, self._reader)

    def ask(self, seconds: float = _SECONDS) -> Any:
        """What the work returns; asked once.

        Arguments:
            seconds: how long the copy may work.

        Raises:
            ProcessDied: the copy was killed, or ended without an answer.
            Stuck: it has given none in time.
        """
        os.write(self._ask, b"?")
        try:
            answer = _listen(self._reader, self._child, seconds)
            _, status = os.waitpid(self._child, 0)
        except BaseException:
            self._end()
            raise
        self._end.detach()
        os.close(self._ask)
        os.close(self._reader)
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            raise ProcessDied(f"The process was killed by {name}.")
        if not answer:
            raise ProcessDied("The process ended without an answer.")
        return pickle.loads(answer)  # noqa: S301 - what our own copy wrote


def _dismiss(owner: int, child: int, *pipes: int) -> None:
    """End a copy that nobody asks; a further copy of its owner leaves it alone."""
    if os.getpid() != owner:
        return
    for pipe in pipes:
        os.close(pipe)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


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
    try:
        return Copy(work).ask(seconds)
    except Stuck:
        return work()


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
    while not parts or parts[-1]:
        while not select.select([reader], [], [], _POLL)[0]:
            if work.seconds > seconds:
                raise Stuck
        parts.append(os.read(reader, 2**16))
    return b"".join(parts)
