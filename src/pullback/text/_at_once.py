"""Work that waits, so many at once, each in the context of its caller."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

__all__ = ["at_once"]

T = TypeVar("T")


def at_once(work: Sequence[Callable[[], T]], limit: int) -> list[T]:
    """What each gives, in their order; where one raises, those that have not begun are left."""
    if not work:
        return []
    with ThreadPoolExecutor(min(limit, len(work)), "pullback-text") as threads:
        running = [threads.submit(copy_context().run, each) for each in work]
        try:
            return [future.result() for future in running]
        except BaseException:
            for future in running:
                future.cancel()
            raise
