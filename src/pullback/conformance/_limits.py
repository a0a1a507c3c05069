"""A limit for every single call of the checked code, which a busy machine does not change.

A call that has worked as it was given may never end with other numbers: an iteration that no longer
converges, a lock that another thread holds. What counts is the CPU time of the process; the clock
ends only what does not move at all.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["NoEnd", "limited"]

# Seconds between two looks at a call, and how many in a row must find it where it was. A process
# that was stopped and goes on finds itself so once.
_LOOK = 20.0
_STILL = 3
_MOVES = 0.05  # seconds of CPU time


_Handler = Callable[[int, FrameType | None], None]


class NoEnd(TimeoutError):
    """A call that has taken many times what a call takes, or does not move at all."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `NoEnd` in the main thread after so many seconds of CPU time.

    Elsewhere, and where there are no timers, there is no limit: only the main thread can be
    interrupted.

    Arguments:
        seconds: of CPU time, of all threads of the process.

    Raises:
        NoEnd: the block has taken so long, or stands still.

    Example:
        >>> with limited(1.0):
        ...     done = True
        >>> done
        True
    """
    main = threading.current_thread() is threading.main_thread()
    if not (main and hasattr(signal, "setitimer")) or signal.getitimer(signal.ITIMER_PROF)[0]:
        yield  # a call within a call is part of it
        return
    with _timer(signal.ITIMER_PROF, signal.SIGPROF, seconds, _ring_after(seconds)):
        if signal.getitimer(signal.ITIMER_REAL)[0]:
            yield  # whoever set it ends what stands still
            return
        with _timer(signal.ITIMER_REAL, signal.SIGALRM, _LOOK, _look()):
            yield


def _ring_after(seconds: float) -> _Handler:
    def ring(number: int, frame: FrameType | None) -> None:
        raise NoEnd(f"no end after {seconds:.3g} s of CPU time")

    return ring


def _look() -> _Handler:
    found = [0, time.process_time()]

    def look(number: int, frame: FrameType | None) -> None:
        now = time.process_time()
        found[:] = [0 if now - found[1] > _MOVES else found[0] + 1, now]
        if found[0] >= _STILL:
            raise NoEnd(f"no end, and no CPU time used in {_STILL * _LOOK:.3g} s")

    return look


@contextmanager
def _timer(which: int, number: int, seconds: float, handler: _Handler) -> Iterator[None]:
    """A timer that rings again and again; what was set before is put back."""
    before = signal.signal(number, handler)
    signal.setitimer(which, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(which, 0.0)
        signal.signal(number, before)
