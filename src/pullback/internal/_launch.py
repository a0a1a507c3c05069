"""Start a program of the user's with our recorder in each of its Pythons.

Nothing here needs torch: a command starts the program first, and imports torch while it runs.

Signals reach the program as if we were not there. A terminal sends Ctrl-C to every process of the
foreground, the program and us; ``kill`` sends its signal to one process, us, and then the program
must hear of it. Nothing in a signal says which of the two it was, so a second process of ours
listens beside us: what it hears went to all.
"""

import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pullback.errors import ProgramError
from pullback.internal._processes import STOP, handled

__all__ = ["Launched", "Limits", "launched", "running"]


_BOOTSTRAP = Path(__file__).parents[1] / "recording" / "_bootstrap"


@dataclass(frozen=True)
class Limits:
    """How much is kept.

    Arguments:
        calls: calls kept for each Function, of different shapes, dtypes or kinds of arguments.
        call_bytes: bytes of tensors in one call.
        total_bytes: bytes of tensors in all calls together.
    """

    calls: int = 3
    call_bytes: int = 32 * 2**20
    total_bytes: int = 512 * 2**20


@dataclass(frozen=True)
class Launched:
    """A program that runs."""

    command: Sequence[str]  # its words
    limits: Limits
    directory: Path  # takes what is recorded
    # waits for its end; its status, negative for a signal, and whether Ctrl-C ended it
    wait: Callable[[], tuple[int, bool]]


@contextlib.contextmanager
def launched(
    command: Sequence[str],
    limits: Limits,
    *,
    eager: bool = False,
    environment: Mapping[str, str] | None = None,
    stdout: int | None = None,
    inside: str = "",
    whole: bool = False,
) -> Iterator[Launched]:
    """Start a program, which keeps its terminal, its arguments and its exit.

    Python starts the recorder in each of its processes through ``sitecustomize``, found by way of
    PYTHONPATH.

    A descriptor may take its standard output. ``inside`` is the name of a module with a
    ``finish(records, directory)`` which each process of the program runs at its end, for the calls
    that no recording can hold, or, ``whole``, for all; it may leave answers in the directory, as
    JSON with the name of the Function: ``Recording.answers``.

    Raises:
        ProgramError: the program does not exist, or cannot be started.
    """
    variables = dict(os.environ if environment is None else environment)
    executable = _resolve(command, variables)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="pullback-", ignore_cleanup_errors=True)
        )
        variables["PULLBACK_RECORD_DIRECTORY"] = directory
        numbers = (limits.calls, limits.call_bytes, limits.total_bytes)
        variables["PULLBACK_RECORD_LIMITS"] = ",".join(str(number) for number in numbers)
        parts = [str(_BOOTSTRAP), variables.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(part for part in parts if part)
        variables["PULLBACK_RECORD_INSIDE"] = inside
        variables["PULLBACK_RECORD_WHOLE"] = "1" if whole else ""
        if eager:
            variables["TORCHDYNAMO_DISABLE"] = "1"
        try:
            wait = stack.enter_context(running([executable, *command[1:]], variables, stdout))
        except OSError as error:
            raise ProgramError(
                f"The program {executable} cannot be started.",
                given=str(error),
                mend=f"pullback check -- python {shlex.quote(executable)}",
            ) from error
        yield Launched(command, limits, Path(directory), wait)


def _resolve(command: Sequence[str], variables: Mapping[str, str]) -> str:
    if not command:
        raise ProgramError(
            "No program was given.", mend="For example: pullback check -- python train.py"
        )
    name = command[0]
    # What is installed beside this Python comes first, as if its environment were activated: the
    # check imports here what the program applied there.
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    found = found or shutil.which(name, path=variables.get("PATH"))
    if found is None:
        mend = (
            f"pullback check -- python {shlex.quote(name)}"
            if name.endswith(".py")
            else "Give a program that is on PATH, for example: pullback check -- python train.py"
        )
        what = "is not executable" if Path(name).is_file() else "does not exist"
        raise ProgramError(f"The program {name} {what}.", given=name, mend=mend)
    return found


# The last two ask training programs for a checkpoint, and would end us.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
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
    heard: list[int] = []
    with contextlib.ExitStack() as stack:
        gets = threading.current_thread() is threading.main_thread()  # no other gets signals
        went_to_all = stack.enter_context(_listening()) if gets else None
        process = subprocess.Popen(list(command), env=dict(variables), stdout=stdout)  # noqa: S603 - the user's own command line
        stack.callback(process.wait)  # whatever becomes of us, it ends as it would

        def hand_on(number: int, frame: FrameType | None) -> None:
            del frame
            heard.append(number)
            if number in (signal.SIGTERM, getattr(signal, "SIGHUP", None)):
                STOP.set()
            if went_to_all is not None and not went_to_all(number):
                process.send_signal(number)

        def wait() -> tuple[int, bool]:
            code = process.wait()
            # What starts others, torchrun for one, ends with a status of its own.
            return code, code == -signal.SIGINT or (code != 0 and signal.SIGINT in heard)

        with handled(_NAMES, hand_on):  # in the main thread alone
            yield wait


@contextlib.contextmanager
def _listening() -> Iterator[Callable[[int], bool]]:
    """A process beside us; gives whether a signal that has just reached us went there too."""
    code = _LISTENER.format(numbers=[int(number) for number in _SIGNALS])
    with subprocess.Popen(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-I", "-S", "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as listener:  # fmt: skip
        pipe = listener.stdout.fileno() if listener.stdout else 0

        def heard(number: int) -> bool:
            while select.select([pipe], [], [], _SECONDS)[0]:
                told = os.read(pipe, 1)
                # Killed before it could listen: then too the signal went to all.
                if not told or told[0] == number:
                    return True
            return False

        try:
            yield heard
        finally:
            listener.kill()
