"""Run a program unchanged and record the custom Functions that it applies."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from pullback.errors import ProgramError
from pullback.internal._launch import Launched, Limits, launched
from pullback.internal._processes import STOP, signal_name
from pullback.internal._secrets import mask_secrets
from pullback.internal._text import command_line
from pullback.recording._recording import Recording

__all__ = ["collect", "record_program"]

_MORE_ROOM = (
    "Make room there, or name another folder: TMPDIR=/path/with/room pullback check -- python ..."
)


def record_program(
    command: list[str],
    limits: Limits | None = None,
    *,
    eager: bool = False,
    environment: Mapping[str, str] | None = None,
) -> tuple[Recording, ProgramError | None]:
    """Run ``command`` as it is and return what it applied.

    The program keeps its terminal, its arguments and its exit.

    Arguments:
        command: a program and its arguments, for example ``["python", "train.py"]``.
        limits: how much to keep.
        eager: ask torch not to compile, so that Functions inside ``torch.compile`` are seen.
        environment: in place of ``os.environ``.

    Returns:
        The recording, and the failure of the program if it ended with another status than 0.

    Raises:
        ProgramError: the program does not exist, or its Python starts no recorder, or its torch is
            not supported.

    Example:
        >>> import sys
        >>> recording, failure = record_program([sys.executable, "-c", "raise SystemExit(3)"])
        >>> len(recording), failure.what
        (0, 'The program exited with status 3.')
    """
    with launched(command, limits or Limits(), eager=eager, environment=environment) as program:
        return collect(program)


def collect(program: Launched) -> tuple[Recording, ProgramError | None]:
    """Wait for the end of a program, and return what it applied, as `record_program` does.

    Raises:
        ProgramError: its Python starts no recorder, or its torch is not supported.
    """
    command, directory = [*program.command], program.directory
    code, interrupted = program.wait()
    recording = Recording.collect(directory, mask_secrets(command), program.limits.calls)
    full = _why_unwritten(directory, recording)
    if code != 0:
        return recording, _failure(command, code, interrupted=interrupted)
    if not any(directory.glob("started-*")):
        raise ProgramError(
            "The program ran, but its Python did not start the recorder.",
            given=command_line(mask_secrets(command)),
            expected="a Python program that reads PYTHONPATH (no -I, -E or -S)",
            mend="Run it through python, for example: pullback check -- python train.py",
        )
    reasons = {path.read_text("utf-8") for path in directory.glob("failed-*")}
    if reasons or (full and not any(item.calls for item in recording)):
        raise ProgramError(
            "The program ran, but its calls could not be recorded.",
            given="; ".join(text for text in [*reasons, full] if text),
            mend=_MORE_ROOM if full else None,
        )
    return recording, None


def _why_unwritten(directory: Path, recording: Recording) -> str:
    """Why calls could not be written, or an empty text; those of which none was say so, too."""
    numbers = [int(p.name.rpartition("-")[2]) for p in directory.glob("unwritten-*")]
    if not numbers:
        return ""
    folder = f"{directory.parent}, the folder for temporary files"
    said = f"{folder}, could not be written to: {os.strerror(numbers[0])}"
    for item in recording:
        if not item.calls:
            item.reasons.clear()
            item.reasons[said] = item.applied
    return said


def _failure(command: list[str], code: int, *, interrupted: bool) -> ProgramError:
    how = f"was ended by {signal_name(-code)}" if code < 0 else f"exited with status {code}"
    failure = ProgramError(
        f"The program {how}.",
        given=command_line(mask_secrets(command)),
        expected="status 0",
        mend="Make it run by itself first; what it said, if anything, is above.",
    )
    failure.status = 128 - code if code < 0 else code
    if STOP.is_set():
        failure.what, failure.mend = f"The program was asked to end, and {how}.", None
    if interrupted:
        failure.interrupted, failure.status = True, 128 + signal.SIGINT
        failure.what, failure.mend = "The program was interrupted.", None
    return failure
