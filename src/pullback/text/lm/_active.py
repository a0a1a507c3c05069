"""The run that is under way in this process, which every language model goes through."""

from collections.abc import AsyncIterator
from typing import Any, Protocol

from pullback.text.lm._completion import Chunk, Completion
from pullback.text.lm._request import Request

__all__ = ["ActiveRun", "activate", "active"]


class ActiveRun(Protocol):
    """What a run does with the requests to models that wrap no other."""

    async def ask(self, lm: Any, request: Request) -> Completion:
        """Answer from the journal, or ask the model within the budget."""
        ...

    def stream(self, lm: Any, request: Request) -> AsyncIterator[Chunk]:
        """The same, bit by bit."""
        ...


_active: list[ActiveRun] = []  # one at most: all threads of a program share its journal and budget


def active() -> ActiveRun | None:
    """The run under way, or None."""
    return _active[-1] if _active else None


def activate(run: ActiveRun | None) -> None:
    """Let every model go through a run from now on; None: no longer."""
    _active[:] = [] if run is None else [run]
