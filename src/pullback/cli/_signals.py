"""What Ctrl-C and a request to end do to a command: it stops, cleans up, and says what it knows."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType

from pullback.internal._processes import STOP, handled

__all__ = [
    "Ended",
    "end_if_asked",
    "ended_by",
    "interrupting",
    "note",
    "stopping_gently",
    "stopping_on_request",
]

_received: list[int] = []


class Ended(BaseException):
    """Somebody asked the command to end."""


def end_if_asked() -> None:
    """Raise `Ended` where we were asked to end, and the program has ended as it would."""
    if STOP.is_set():
        raise Ended


def note(number: int) -> None:
    """Note that the program of the command was ended by a signal, and so is the command."""
    _received.append(number)


def ended_by() -> int:
    """The number of the signal that the command was asked to end by; 0 if it was not."""
    # While a program runs, what `running` hears is handed on, and sets `STOP` alone.
    return _received[-1] if _received else STOP.is_set() * signal.SIGTERM


@contextlib.contextmanager
def stopping_on_request() -> Iterator[None]:
    """Let SIGTERM and SIGHUP run every clean-up, where they would end us at once."""
    STOP.clear()
    _received.clear()
    with _handling(("SIGTERM", "SIGHUP"), lambda number, again: Ended):
        yield


def stopping_gently() -> AbstractContextManager[None]:
    """The first signal stops what runs and lets us say what is known; the second ends us."""

    def answer(number: int, again: bool) -> type[BaseException] | None:
        return (KeyboardInterrupt if number == signal.SIGINT else Ended) if again else None

    return _handling(("SIGINT", "SIGTERM", "SIGHUP"), answer)


def interrupting() -> AbstractContextManager[None]:
    """For a check in this very process: any signal ends it at once."""
    return _handling(("SIGINT", "SIGTERM", "SIGHUP"), lambda number, again: KeyboardInterrupt)


def _handling(
    names: tuple[str, ...], answer: Callable[[int, bool], type[BaseException] | None]
) -> AbstractContextManager[None]:
    """Note a signal, and raise what answers it, told whether it is one of several."""

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        raised = answer(number, STOP.is_set())
        _received.append(number)
        STOP.set()
        if raised is not None:
            raise raised

    return handled(names, handle)
