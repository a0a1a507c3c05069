"""So many at once and no more, over threads and event loops."""

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["Limiter"]


class Limiter:
    """Counts what runs at once; right across threads and event loops, first come first served."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.renew()
        _limiters.add(self)

    def renew(self) -> None:
        """Let all places be free: who held one, or waits, is in another process."""
        self.free = self.limit
        self._lock = threading.Lock()
        self._waiting: deque[concurrent.futures.Future[None]] = deque()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place inside."""
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        with self._lock:
            if self.free:
                self.free -= 1
                future.set_result(None)
            else:
                self._waiting.append(future)
        try:
            if not future.done():
                await asyncio.shield(asyncio.wrap_future(future))
            yield
        finally:
            if not future.cancel():  # who was given no place gives none back
                self._release()

    def _release(self) -> None:
        """Give a place back, to whoever waits longest."""
        with self._lock:
            while self._waiting:
                future = self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_result(None)
                    return
            self.free = min(self.free + 1, self.limit)  # more where it was renewed since


_limiters: "weakref.WeakSet[Limiter]" = weakref.WeakSet()


def _renew() -> None:
    """After a fork the child runs nothing of what holds places in its parent."""
    for limiter in _limiters:
        limiter.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
