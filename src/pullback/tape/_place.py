"""Places: where in a program something happens, whatever the order of time.

What runs at once arrives in another order each time. Its place does not change: operations that
wait are numbered in the order in which their own thread or task applies them, and what happens
inside one, forward or backward, happens at its place. The count is kept in the context, so that
a task which is forked goes on counting by itself.
"""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from pullback.internal._setting import setting

__all__ = ["advance", "at", "place", "within"]

Part = str | int
Path = tuple[Part, ...]

_here: ContextVar[tuple[Path, int]] = ContextVar("pullback.tape.place", default=((), 0))


def place() -> Path:
    """The parts of the program that this is in.

    Example:
        >>> with at("epoch", 1), at("item", 3):
        ...     place()
        ('epoch', 1, 'item', 3)
    """
    return _here.get()[0]


def advance() -> Path:
    """The place of the next operation here."""
    path, count = _here.get()
    _here.set((path, count + 1))
    return (*path, count)


def at(*parts: Part) -> AbstractContextManager[Any]:
    """Let what happens inside have a place of its own.

    Arguments:
        parts: a name, a number, or both; the same ones are the same place again.
    """
    return within((*place(), *parts))


def within(path: Path) -> AbstractContextManager[Any]:
    """Let what happens inside be at a place that is known, such as that of a node."""
    return setting(_here, (path, 0))
