"""Give a context variable a value for a while."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["setting"]

T = TypeVar("T")


@contextlib.contextmanager
def setting(variable: ContextVar[T], value: T) -> Iterator[T]:
    """Let a context variable have a value inside, which is given."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
