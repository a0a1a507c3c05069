"""`Retry` and `Limit`: asks again, or later."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import nullcontext

from pullback.errors import ArgumentError, ModelError
from pullback.internal._arguments import check_counts, checked
from pullback.internal._extras import require
from pullback.internal._limiter import Limiter
from pullback.text.lm._completion import Chunk
from pullback.text.lm._lm import LM, Ask, Wrapper
from pullback.text.lm._request import Request

__all__ = ["Limit", "Retry"]


# In a program that shows no log, each retry would be a line on standard error that says nothing.
logging.getLogger("stamina").addHandler(logging.NullHandler())


@checked
class Retry(Wrapper):
    """Ask again after what passes: 429, 5xx, time-outs, dropped connections, broken replies.

    Waits twice as long each time, with jitter, or as long as the server's ``Retry-After`` says. A
    refusal that the same request would meet again (400, 401, no quota) is raised at once. A
    stream is asked for again only while nothing of it was handed on.

    Arguments:
        inner: the model.
        attempts: the most times to ask.
        wait: seconds before the second attempt.
        longest_wait: seconds before any attempt at most; a ``Retry-After`` beyond it is raised.

    Raises:
        ArgumentError: a number that makes no sense.
        ModelError: of the last attempt, with how many there were.
    """

    def __init__(
        self, inner: LM, *, attempts: int = 5, wait: float = 0.5, longest_wait: float = 60.0
    ) -> None:
        super().__init__(inner)
        check_counts(attempts=attempts)
        if wait < 0 or longest_wait < wait:
            raise ArgumentError(
                "Waits are not negative, and the longest is the longest.",
                given=f"wait={wait:g}, longest_wait={longest_wait:g}",
            )
        self._stamina = require("stamina", extra="text", purpose="text.lm.Retry")
        self.attempts = attempts
        self.wait = wait
        self.longest_wait = longest_wait

    def _again(self, error: Exception) -> bool | float:
        """Whether to ask again, or the seconds to wait before."""
        if not isinstance(error, ModelError) or not error.transient:
            return False
        wait = error.retry_after
        return True if wait is None else wait if wait <= self.longest_wait else False

    async def step(self, request: Request, ask: Ask) -> AsyncIterator[Chunk]:
        """Ask until an answer begins to come."""
        number = 0
        attempts = self._stamina.retry_context(
            on=self._again, attempts=self.attempts, timeout=None, wait_initial=self.wait,
            wait_max=self.longest_wait, wait_jitter=self.wait,
        )  # fmt: skip
        try:
            async for attempt in attempts:
                failed: ModelError | None = None
                with attempt:
                    number = attempt.num
                    begun = False
                    try:
                        async for chunk in ask(request):
                            begun = True
                            yield chunk
                    except ModelError as error:
                        if not begun:
                            raise
                        failed = error
                if failed is not None:
                    raise failed
        except ModelError as error:
            if number > 1:
                error.add_note(f"  attempts: {number}")
            raise


@checked
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
        limits = {"concurrency": concurrency, "rate": rate}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        check_counts(**given)
        if not given or not per > 0:
            raise ArgumentError("A limit limits something, in some time.",
                                given=f"{limits}, per={per:g}")  # fmt: skip
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
