"""Work that waits, so many at once, each in the context of its caller."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

__all__ = ["at_once"]

T = TypeVar("T")


def at_once(work: Sequence[Callable[[], T]], limit: int) -> list[T]:
    """What each gives, in their order; where one raises, those that have not begun are left."""
    threads = ThreadPoolExecutor(min(limit, max(len(work), 1)), "pullback-text")
    try:
        running = [threads.submit(copy_context().run, each) for each in work]
        return [future.result() for future in running]
    finally:
        threads.shutdown(cancel_futures=True)
