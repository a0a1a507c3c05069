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
            self.free += 1
