"""Run a program of the user's so that signals reach it as if we were not there.

A terminal sends Ctrl-C to every process of the foreground, the program and us; ``kill`` sends its
signal to one process, us, and then the program must hear of it. Nothing in a signal says which of
the two it was, so a second process of ours listens beside us: what it hears went to all.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

from pullback.internal._processes import STOP, handled

__all__ = ["running"]

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
_SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
_LISTENER = """
import os, signal
for number in {numbers}:
    signal.signal(number, lambda number, frame: os.write(1, bytes([number])))
os.write(1, bytes([0]))
os.read(0, 1)
"""
_SECONDS = 1.0  # that a listener on a busy machine may need


@contextlib.contextmanager
def running(
    command: Sequence[str], variables: Mapping[str, str], stdout: int | None = None
) -> Iterator[Callable[[], tuple[int, bool]]]:
    """Run a program with our terminal, whatever is sent to us until it has ended.

    A request to end (SIGTERM, SIGHUP) is handed to the program, and sets `STOP`: when the program
    has ended as it would, there is nothing more to do. The variables are its whole environment, a
    descriptor may take its standard output. Gives what waits for its end: its exit status, negative
    for a signal, and whether Ctrl-C ended it.

    Raises:
        OSError: it cannot be started.
    """
    with contextlib.ExitStack() as stack:
        hears = threading.current_thread() is threading.main_thread()  # no other gets signals
        listener = stack.enter_context(_Listener()) if hears else None
        process = subprocess.Popen(list(command), env=dict(variables), stdout=stdout)  # noqa: S603 - the user's own command line
        stack.callback(process.wait)  # whatever becomes of us, it ends as it would
        heard = stack.enter_context(_relayed(process, listener)) if listener else []

        def wait() -> tuple[int, bool]:
            code = process.wait()
            # What starts others, torchrun for one, ends with a status of its own.
            return code, code == -signal.SIGINT or (code != 0 and signal.SIGINT in heard)

        yield wait


class _Listener:
    """A process beside us that says which signals it gets."""

    def __enter__(self) -> "_Listener":
        code = _LISTENER.format(numbers=[int(number) for number in _SIGNALS])
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return self

    def __exit__(self, *reason: object) -> None:
        self._process.kill()
        self._process.communicate()

    def hears(self, number: int) -> bool:
        """Whether a signal that has just reached us went to the listener too."""
        if self._process.stdout is None:
            return False
        pipe = self._process.stdout.fileno()
        while select.select([pipe], [], [], _SECONDS)[0]:
            heard = os.read(pipe, 1)
            # Killed before it could listen: then too the signal went to all.
            if not heard or heard[0] == number:
                return True
        return False


@contextlib.contextmanager
def _relayed(process: "subprocess.Popen[bytes]", listener: _Listener) -> Iterator[list[int]]:
    """Hand each signal that went to us alone to the program; gives those that were heard."""
    heard: list[int] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        del frame
        heard.append(number)
        if number in (signal.SIGTERM, getattr(signal, "SIGHUP", None)):
            STOP.set()
        if not listener.hears(number):
            process.send_signal(number)

    with handled(_NAMES, hand_on):
        yield heard
