"""So many at once and no more, over threads and event loops."""

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["Limiter"]


class Limiter:
    """Counts what runs at once; right across threads and event loops, first come first served."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.free = limit
        self._lock = threading.Lock()
        self._waiting: deque[concurrent.futures.Future[None]] = deque()

    def acquire(self) -> concurrent.futures.Future[None]:
        """A future that is done when a place is taken."""
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        with self._lock:
            if self.free:
                self.free -= 1
                future.set_result(None)
            else:
                self._waiting.append(future)
        return future

    def release(self) -> None:
        """Give a place back, to whoever waits longest."""
        with self._lock:
            while self._waiting:
                future = self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_result(None)
                    return
            self.free += 1

    def give_up(self, future: concurrent.futures.Future[None]) -> None:
        """No longer wait for a place; give it back if it was just given."""
        if not future.cancel() and future.done():
            self.release()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place inside."""
        future = self.acquire()
        try:
            if not future.done():
                await asyncio.shield(asyncio.wrap_future(future))
        except BaseException:
            self.give_up(future)
            raise
        try:
            yield
        finally:
            self.release()
