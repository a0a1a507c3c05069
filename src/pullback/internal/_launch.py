"""Start a program of the user's with our recorder in each of its Pythons.

Nothing here needs torch: a command starts the program first, and imports torch while it runs.
"""

import contextlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pullback.errors import ProgramError
from pullback.internal._program import running

__all__ = ["Launched", "Limits", "launched"]

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
) -> Iterator[Launched]:
    """Start a program, which keeps its terminal, its arguments and its exit.

    Python starts the recorder in each of its processes through ``sitecustomize``, found by way of
    PYTHONPATH. The arguments are those of `pullback.recording.record_program`.

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
        if inside:
            variables["PULLBACK_RECORD_INSIDE"] = inside
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
