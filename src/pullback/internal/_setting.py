"""Give a context variable a value for a while."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["PROBING", "setting"]

T = TypeVar("T")

# Whether a check that the program itself asks for is under way: what it applies is none of the
# program's own calls.
PROBING: ContextVar[bool] = ContextVar("PROBING", default=False)


@contextlib.contextmanager
def setting(variable: ContextVar[T], value: T) -> Iterator[T]:
    """Let a context variable have a value inside, which is given."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
