"""`Limit`: so many calls at once, and so many in any minute."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import nullcontext

from pullback.errors import ArgumentError
from pullback.internal._limiter import Limiter
from pullback.text.lm._completion import Chunk
from pullback.text.lm._lm import LM, Ask, Wrapper
from pullback.text.lm._request import Request

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
        self._turn = Limiter(1)  # who is first waits for the time, the others for their turn
        self._rate = rate
        self._per = per
        self._begun: deque[float] = deque(maxlen=rate)

    async def step(self, request: Request, ask: Ask) -> AsyncIterator[Chunk]:
        """Ask when there is a place, which is held until the answer ends."""
        async with self._limiter.place() if self._limiter is not None else nullcontext():
            if self._rate is not None:
                async with self._turn.place():
                    await self._begin(self._rate)
            async for chunk in ask(request):
                yield chunk

    async def _begin(self, rate: int) -> None:
        """Wait until a call may begin, which begins then."""
        while len(self._begun) == rate:
            wait = self._begun[0] + self._per - time.monotonic()
            if wait <= 0:
                break
            await asyncio.sleep(wait)
        self._begun.append(time.monotonic())
