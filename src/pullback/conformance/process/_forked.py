"""Copies of this process: what they run ends none but the copy, and starts from how it was made.

A compiled kernel that is handed a fake tensor reads memory that is not there. A fork costs some
ten milliseconds, where a fresh process takes seconds to import torch.
"""

import io
import math
import mmap
import os
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch

from pullback.conformance.process._guard import device_in_use, has_device, what_device_says
from pullback.conformance.process._limits import limited
from pullback.internal._processes import Child, describe_end, start_copy
from pullback.internal._work_time import WorkTime

__all__ = [
    "Copy", "ProcessDied", "alone", "can_copy", "forked", "is_copy", "is_harmless", "unharmed",
]  # fmt: skip

_SECONDS = 20.0
_AGAIN = 5.0  # seconds by the clock in which copies are made in the place of those that ended
_POLL = 0.2


class ProcessDied(Exception):
    """The copy of the process ended without an answer, or was given up."""


class Copy:
    """A copy of this process as it is now, which waits until it is asked, and may then answer.

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
        self.answered = False
        self._connection, theirs = Pipe()

        def answer() -> None:
            _copies.add(os.getpid())
            self._connection.close()  # so that the end of the original is heard
            theirs.recv_bytes()
            # Not by `send`: torch would hand over tensors as memory that ends with the copy. And
            # not by `pickle`, which has no tensors of float8.
            packed = io.BytesIO()
            torch.save(work(), packed)
            theirs.send_bytes(packed.getbuffer())

        self._child = start_copy(answer)
        theirs.close()
        self._end = weakref.finalize(self, _end, os.getpid(), self._child, self._connection)

    def ask(self, seconds: float = _SECONDS) -> Any:
        """What the work returns; asked once.

        Raises:
            ProcessDied: the copy was killed, ended without an answer, or has given none in time:
                it may wait for a lock that another thread of the original held.
        """
        spent = WorkTime(self._child.pid)
        try:
            self._connection.send_bytes(b"?")
            while not self._connection.poll(_POLL):
                if spent.seconds > seconds:
                    raise ProcessDied(f"The copy gave no answer within {seconds:g} s.")
            packed = io.BytesIO(self._connection.recv_bytes())
            self.answered = True
            return torch.load(packed, weights_only=False)  # of our own copy
        except (EOFError, OSError):
            status = self._end()
            killed = status is not None and status < 0
            said = describe_end(status) if killed else "The process ended without an answer."
            raise ProcessDied(said) from None
        finally:
            self._end()


_copies: set[int] = set()  # this process, if it is one


def is_copy() -> bool:
    """Whether this process is a copy, which computes in one thread and for its original alone."""
    return os.getpid() in _copies


def _end(owner: int, child: Child, connection: Connection) -> int | None:
    """End a copy; a further copy of its owner leaves it alone."""
    if os.getpid() != owner:
        return None
    connection.close()
    return child.end()


def forked(work: Callable[[], Any], seconds: float = _SECONDS) -> Any:
    """The plain data that ``work`` returns, from a copy of this process where one can be made.

    Then it is not done here, whatever becomes of the copy: it may have been the end of it.

    Raises:
        ProcessDied: the copy was killed, ended without an answer, or gave none in time.

    Example:
        >>> forked(lambda: [1, 2])
        [1, 2]
    """
    return Copy(work).ask(seconds) if can_copy() else work()


def unharmed(work: Callable[[], Any], otherwise: Any) -> Any:
    """What ``work`` returns, as `forked`, or something else where it ends its process.

    It asks `is_harmless` before each thing that may: what has ended a copy the next one leaves out.
    Where a device is in use no copy can have it, and an assertion of the device would end its use
    here: nothing is tried.

    Example:
        >>> unharmed(lambda: os._exit(1), "nothing") if can_copy() else "nothing"
        'nothing'
    """
    if device_in_use() is not None:
        return otherwise
    trials, until = _Trials(), time.monotonic() + _AGAIN
    _running.append(trials)
    try:
        while True:
            with suppress(ProcessDied):
                return forked(lambda: _limited_once(work))
            if time.monotonic() > until or not trials.leave_out_latest():
                return otherwise
    finally:
        _running.pop()


def _limited_once(work: Callable[[], Any]) -> Any:
    """Within one limit that never ends: a copy has no timers, and each call would set its own."""
    with limited(math.inf):
        return work()


class _Trials:
    """Numbers what a copy tries, where its original can read it."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 8)  # of a copy and its original
        self._left_out: set[int] = set()
        self._begun = 0

    def begin(self) -> bool:
        self._begun += 1
        if self._begun in self._left_out:
            return False
        self._shared[:] = self._begun.to_bytes(8, "little")
        return True

    def leave_out_latest(self) -> bool:
        """Leave out what the copy has tried last; whether that is another one than before."""
        latest = int.from_bytes(self._shared[:], "little")
        known = latest in (0, *self._left_out)
        self._left_out.add(latest)
        return not known


_running: list[_Trials] = []  # those of this process, or of the copy that it is, the latest last


def is_harmless() -> bool:
    """Whether what is tried next has ended no copy of this process yet."""
    return not _running or _running[-1].begin()


def alone(work: Callable[[], Any], is_as_before: Callable[[], bool]) -> Any:
    """What ``work`` returns, in a process whose end harms nobody.

    It ends with its device, and where something is not as it was before.
    """
    found = work()
    if said := what_device_says() or "The checked code answers otherwise." * (not is_as_before()):
        print(said, file=sys.stderr)
        os._exit(1)
    return found


def can_copy() -> bool:
    """Whether a copy of this process can compute, backward included.

    No copy can use a device that its original has used. And where there is a device at all, whether
    used or not, autograd keeps a thread for it from the first backward on, which no copy has: torch
    refuses every backward there
    (https://github.com/pytorch/pytorch/wiki/Autograd-and-Fork). Nothing says whether there was one,
    so a copy tries.

    Example:
        >>> isinstance(can_copy(), bool)
        True
    """
    if sys.platform != "linux":
        return False
    if device_in_use() is not None:
        return False
    return not has_device() or _a_copy_differentiates()


def _a_copy_differentiates() -> bool:
    one = torch.ones((), requires_grad=True, device="cpu")
    try:
        return Copy(lambda: one.backward() is None).ask()
    except ProcessDied:
        return False
