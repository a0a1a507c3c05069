"""`Limit`: so many calls at once, and so many in any minute."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from pullback.errors import ArgumentError
from pullback.internal._limiter import Limiter
from pullback.text.lm._completion import Chunk
from pullback.text.lm._lm import LM
from pullback.text.lm._request import Request
from pullback.text.lm._wrapper import Ask, Wrapper

__all__ = ["Limit"]


class Limit(Wrapper):
    """Let at most so many calls be under way at once, and so many begin in any stretch of time.

    Who waits longest goes first. Right over threads and event loops.

    Arguments:
        inner: the model.
        concurrency: calls under way at most; any number if None.
        rate: calls that begin within any ``per`` seconds at most; any number if None.
        per: seconds.

    Raises:
        ArgumentError: a limit that is not positive, or none at all.
    """

    def __init__(
        self,
        inner: LM,
        *,
        concurrency: int | None = None,
        rate: int | None = None,
        per: float = 60.0,
    ) -> None:
        super().__init__(inner)
        given = f"concurrency={concurrency}, rate={rate}, per={per:g}"
        if concurrency is None and rate is None:
            raise ArgumentError("A limit limits something.", given=given)
        if min(1 if concurrency is None else concurrency, 1 if rate is None else rate) < 1 or (
            not per > 0
        ):
            raise ArgumentError("A limit is a positive number.", given=given)
        self._limiter = None if concurrency is None else Limiter(concurrency)
        self._rate = rate
        self._per = per
        self._lock = threading.Lock()
        self._bookings: deque[float] = deque(maxlen=rate)
        self._begun: deque[float] = deque(maxlen=rate)

    async def step(self, request: Request, ask: Ask) -> AsyncIterator[Chunk]:
        """Ask when there is a place, which is held until the answer ends."""
        async with self._place():
            async for chunk in ask(request):
                yield chunk

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        async with self._limiter.place() if self._limiter is not None else nullcontext():
            await asyncio.sleep(self._booked())
            while wait := self._early():  # one before may have begun later than it was booked
                await asyncio.sleep(wait)
            yield

    def _booked(self) -> float:
        """Seconds until this call may begin; its beginning is booked."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = time.monotonic()
            full = len(self._bookings) == self._rate
            begin = max(now, self._bookings[0] + self._per) if full else now
            self._bookings.append(begin)
            return begin - now

    def _early(self) -> float:
        """Seconds that this call is too early by; 0 where it begins now."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = time.monotonic()
            if len(self._begun) == self._rate and self._begun[0] + self._per > now:
                return self._begun[0] + self._per - now
            self._begun.append(now)
            return 0.0
