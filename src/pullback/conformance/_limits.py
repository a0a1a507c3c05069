"""A limit for every single call of the checked code, which a busy machine does not change.

A call that has worked as it was given may never end with other numbers: an iteration that no longer
converges, a lock that another thread holds. What counts is the CPU time of the process; the clock
ends only what does not move at all.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

__all__ = ["NoEnd", "can_limit", "limited"]

# So many looks in a row must find a call where it was. A process that was stopped and goes on finds
# itself so once or twice, however long that was.
_STILL = 3
_STANDS = 60.0  # seconds, by the clock, after which what does not move is ended
_MOVES = 0.05  # of the clock: less CPU time is none

_Handler = Callable[[int, FrameType | None], None]


class NoEnd(TimeoutError):
    """A call that has taken many times what a call takes, or does not move at all."""


@contextmanager
def limited(seconds: float, stands: float | None = None) -> Iterator[None]:
    """Raise `NoEnd` in the main thread after so many seconds of CPU time.

    Elsewhere, and where there are no timers, there is no limit: only the main thread can be
    interrupted. A limit within a limit ends no later than the outer one. Where many calls follow
    each other, an endless limit around them all makes each cheap: the handlers stay where they are.

    Arguments:
        seconds: of CPU time, of all threads of the process.
        stands: seconds, by the clock, for which it may use no CPU time; of the outermost limit.

    Raises:
        NoEnd: the block has taken so long, or stands still.

    Example:
        >>> with limited(1.0):
        ...     done = True
        >>> done
        True
    """
    end, depth = time.process_time() + seconds, len(_ends)
    if not can_limit() or (_ends and _ends[-1][0] <= end):
        yield  # a call within a call is part of it
        return
    if not _ends and 0 < signal.getitimer(signal.ITIMER_PROF)[0] <= seconds:
        yield  # as within a limit that is not ours
        return
    with nullcontext() if _ends else _watch(stands):
        try:
            _ends.append((end, seconds))
            _arm()
            yield
        finally:
            del _ends[depth:]
            _arm()


# The CPU time of the process at which each limit ends, and its seconds; the innermost is the last.
_ends: list[tuple[float, float]] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ends.clear)  # as the timers, which a copy has not


def _arm() -> None:
    """Ring when the innermost limit ends."""
    end, seconds = _ends[-1] if _ends else (math.inf, math.inf)
    if end == math.inf:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    else:
        signal.setitimer(signal.ITIMER_PROF, max(end - time.process_time(), 1e-3), seconds)


@contextmanager
def _watch(stands: float | None) -> Iterator[None]:
    with _timer(signal.ITIMER_PROF, signal.SIGPROF, 0.0, _ring):
        if stands is None and signal.getitimer(signal.ITIMER_REAL)[0]:
            yield  # whoever set it ends what stands still
            return
        every = (stands or _STANDS) / _STILL
        with _timer(signal.ITIMER_REAL, signal.SIGALRM, every, _look(every)):
            yield


def can_limit() -> bool:
    """Whether a limit can be kept here: in the main thread, where there are timers.

    Example:
        >>> can_limit() == (threading.current_thread() is threading.main_thread())
        True
    """
    main = threading.current_thread() is threading.main_thread()
    return main and hasattr(signal, "setitimer")


def _ring(number: int, frame: FrameType | None) -> None:
    if _ends:
        raise NoEnd(f"no answer within {_ends[-1][1]:.3g} s of CPU time")


def _look(every: float) -> _Handler:
    found = [0, time.process_time()]

    def look(number: int, frame: FrameType | None) -> None:
        now = time.process_time()
        moves = now - found[1] > _MOVES * every or not _ends or _ends[-1][0] == math.inf
        found[:] = [0 if moves else found[0] + 1, now]
        if found[0] >= _STILL:
            raise NoEnd(f"no answer, and no CPU time used, within {_STILL * every:.3g} s")

    return look


@contextmanager
def _timer(which: int, number: int, seconds: float, handler: _Handler) -> Iterator[None]:
    """A timer that rings again and again; what was set before goes on where it was."""
    before = signal.signal(number, handler)
    now = time.process_time if which == signal.ITIMER_PROF else time.monotonic
    left, interval = signal.setitimer(which, seconds, seconds)
    started = now()
    try:
        yield
    finally:
        rest = max(left - (now() - started), 1e-3) if left else 0.0
        signal.setitimer(which, rest, interval)
        signal.signal(number, before)
