"""A limit for every single call of the checked code, which a busy machine does not change.

A call that has worked as it was given may never end with other numbers: an iteration that no longer
converges, a lock that another thread holds. What counts is the CPU time of the process; the clock
ends only what does not move at all.

A check makes thousands of calls, each with its limit. So none reads a clock or sets a timer: one
timer ticks around them all, and whoever is there at a tick is there since then.

Changed arguments are tried on the CPU before a device is handed them. An index beyond the end, or a
probability above one, is an exception on the CPU. CUDA answers it by an assertion of the device,
after which no later call of the process uses it: neither the check nor whoever asked for it. So
what the CPU refuses is refused, and the device never sees it.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch

from pullback.conformance.inputs._tree import replace, tensors
from pullback.conformance.process._failure import raised
from pullback.errors import UnsupportedError

__all__ = [
    "CpuTrial", "NoEnd", "can_limit", "held", "limited", "patience_for", "patience_to_compile",
]  # fmt: skip

# So many looks in a row must find a call where it was. A process that was stopped and goes on finds
# itself so once or twice, however long that was.
_STILL = 3
_STANDS = 60.0  # seconds, by the clock, after which what does not move is ended
_MOVES = 0.05  # of the clock: less CPU time is none
_WAIT = 10.0  # seconds, by the clock, for a thread that holds what another one needs

_Handler = Callable[[int, FrameType | None], None]


_LEAST, _MANY = 5.0, 300.0  # seconds, and times what a call has taken
_COMPILES = 20.0  # seconds that a compiler may take


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
    if not can_limit():
        yield
        return
    if not _running and 0 < signal.getitimer(signal.ITIMER_PROF)[0] <= seconds:
        yield  # as within a limit that is not ours
        return
    with nullcontext() if _running else _watch(stands):
        depth = len(_running)
        try:
            _running.append([seconds, math.inf])
            if seconds < _TICKS * _tick[0]:
                _tick[0] = seconds / _TICKS
                signal.setitimer(signal.ITIMER_PROF, _tick[0], _tick[0])
            yield
        finally:
            del _running[depth:]


# The seconds of each limit and the CPU time at the first tick within it; the innermost is the last.
_running: list[list[float]] = []
_TICKS, _LONGEST = 8, 0.25
_tick = [math.inf]  # seconds of CPU time
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)  # as the timers, which a copy has not


@contextmanager
def _watch(stands: float | None) -> Iterator[None]:
    _tick[0] = _LONGEST
    with _timer(signal.ITIMER_PROF, signal.SIGPROF, _LONGEST, _ring):
        if stands is None and signal.getitimer(signal.ITIMER_REAL)[0]:
            yield  # whoever set it ends what stands still
            return
        every = (stands or _STANDS) / _STILL
        with _timer(signal.ITIMER_REAL, signal.SIGALRM, every, _look(every)):
            yield


@contextmanager
def held(lock: threading.RLock) -> Iterator[None]:
    """Hold a lock of the checker's own; whoever stands still with it is not waited for.

    Raises:
        NoEnd: another thread has not let go of it.
    """
    if not lock.acquire(timeout=_WAIT):
        raise NoEnd(f"another thread has not ended within {_WAIT:.3g} s")
    try:
        yield
    finally:
        lock.release()


def patience_for(seconds: float) -> float:
    """The limit of one call, hundreds of times what it takes as it was given.

    Example:
        >>> patience_for(0.001), patience_for(1.0)
        (5.0, 300.0)
    """
    return max(_LEAST, _MANY * seconds)


def patience_to_compile(patience: float) -> float:
    """The limit of a call that may be the first of its kind, for which kernels are compiled."""
    return max(_COMPILES, patience)


def can_limit() -> bool:
    """Whether a limit can be kept here: in the main thread, where there are timers."""
    main = threading.current_thread() is threading.main_thread()
    return main and hasattr(signal, "setitimer")


def _ring(number: int, frame: FrameType | None) -> None:
    now = time.process_time()
    for limit in _running:
        limit[1] = min(limit[1], now)
        if now - limit[1] > limit[0]:
            raise NoEnd(f"no answer within {limit[0]:.3g} s of CPU time")


def _look(every: float) -> _Handler:
    found = [0, time.process_time()]

    def look(number: int, frame: FrameType | None) -> None:
        now = time.process_time()
        moves = now - found[1] > _MOVES * every or not _running or _running[-1][0] == math.inf
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
        signal.setitimer(which, 0.0)
        # Its last signal may be on its way to another thread, which is not running, and would end
        # the process by the handler that torch or Python began with: the kernel drops it here.
        signal.signal(number, signal.SIG_IGN)
        signal.signal(number, before)
        rest = max(left - (now() - started), 1e-3) if left else 0.0
        signal.setitimer(which, rest, interval)


class CpuTrial:
    """A call with other arguments than the given ones, which lie on a device.

    Arguments:
        given: makes the positional and keyword arguments that were given.
    """

    def __init__(self, given: Callable[[], tuple[Any, Any]]) -> None:
        self._given = given
        self._passed = False

    def of(self, call: Callable[..., Any], made: tuple[Any, Any]) -> None:
        """Raise what the CPU does of these arguments; once passed, those close by pass too.

        Where the code does not run on the CPU at all, nothing is known of other indices.

        Raises:
            Exception: what the call raises on the CPU, and does not of the given arguments.
            UnsupportedError: an index is among the arguments, and the code runs on a device only.
        """
        if self._passed:
            return
        with torch.random.fork_rng(devices=()):
            try:
                _call(call, made)
            except Exception:
                if raised(lambda: _call(call, self._given())) is None:
                    raise
                if not all(t.is_floating_point() or t.is_complex() for t in tensors(made)):
                    raise UnsupportedError(
                        "Other indices are not tried: one beyond the end ends the use of a device.",
                        given="code that does not run on the CPU",
                    ) from None
        self._passed = True


def _call(call: Callable[..., Any], made: tuple[Any, Any]) -> None:
    values = [
        value.detach().to("cpu", copy=True).requires_grad_(value.requires_grad)
        for value in tensors(made)
    ]
    args, kwargs = replace(made, iter(values))
    outputs = [y for y in tensors(call(*args, **kwargs)) if y.requires_grad]
    leaves = [x for x in values if x.requires_grad]
    if outputs and leaves:
        ones = [torch.ones_like(y) for y in outputs]
        torch.autograd.grad(outputs, leaves, ones, allow_unused=True)
