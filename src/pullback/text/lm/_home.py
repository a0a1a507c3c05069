"""One event loop for all connections, so that a client can be kept whoever calls it."""

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

from pullback.tape._concurrency import loop_of, runs

__all__ = ["at_home", "awaited", "begin_at_home", "patience"]

T = TypeVar("T")
HOME = "connections"  # the name of that loop

patience: ContextVar[Callable[[], float] | None] = ContextVar(
    "pullback.text.patience", default=None
)
"""Seconds that a call which is cancelled goes on for, so that its answer is kept."""


async def at_home(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine that uses connections; cancelling this cancels it, at once or in a while.

    Who keeps answers sets `patience`: a loop that ends cancels all its tasks, though what they
    asked for is paid for.
    """
    home = loop_of(HOME)
    if asyncio.get_running_loop() is home:
        return await coroutine
    answer = awaited(asyncio.run_coroutine_threadsafe(coroutine, home))
    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:
        left = patience.get()
        if left is None or not (await asyncio.wait([answer], timeout=left()))[0]:
            raise
        return answer.result()
    finally:
        answer.cancel()


def awaited(future: concurrent.futures.Future[T]) -> asyncio.Future[T]:
    """A future of another thread, to await; one whose awaiter has left raises for nobody."""
    answer = asyncio.wrap_future(future)
    answer.add_done_callback(lambda each: each.cancelled() or each.exception())  # is retrieved
    return answer


def begin_at_home(start: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Let a coroutine run there without waiting for it; nothing happens where no loop runs yet."""
    if runs(HOME):
        asyncio.run_coroutine_threadsafe(start(), loop_of(HOME))
