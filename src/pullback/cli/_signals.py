"""What Ctrl-C and a request to end do to a command: it stops, cleans up, and says what it knows."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from pullback.internal._processes import STOP

__all__ = ["Ended", "ended_by", "interrupting", "note", "stopping_gently", "stopping_on_request"]

_received: list[int] = []


class Ended(BaseException):
    """Somebody asked the command to end."""


def note(number: int) -> None:
    """Note that the program of the command was ended by a signal, and so is the command."""
    _received.append(number)


def ended_by() -> int:
    """The number of the signal that the command was asked to end by; 0 if it was not."""
    return _received[-1] if _received else 0


@contextlib.contextmanager
def stopping_on_request() -> Iterator[None]:
    """Let SIGTERM and SIGHUP run every clean-up, where they would end us at once."""
    STOP.clear()
    _received.clear()
    with _handling(("SIGTERM", "SIGHUP"), _end):
        yield


@contextlib.contextmanager
def stopping_gently() -> Iterator[None]:
    """The first signal stops what runs and lets us say what is known; the second ends us."""
    with _handling(("SIGINT", "SIGTERM", "SIGHUP"), _stop):
        yield


@contextlib.contextmanager
def interrupting() -> Iterator[None]:
    """For a check in this very process: any signal ends it at once."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        _received.append(number)
        STOP.set()
        raise KeyboardInterrupt

    with _handling(("SIGINT", "SIGTERM", "SIGHUP"), interrupt):
        yield


def _end(number: int, frame: FrameType | None) -> None:
    del frame
    _received.append(number)
    STOP.set()
    raise Ended


def _stop(number: int, frame: FrameType | None) -> None:
    del frame
    again = STOP.is_set()
    _received.append(number)
    STOP.set()
    if again:
        raise KeyboardInterrupt if number == signal.SIGINT else Ended


@contextlib.contextmanager
def _handling(names: tuple[str, ...], handler: object) -> Iterator[None]:
    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in names:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
