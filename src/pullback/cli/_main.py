"""`main`: run a command, and turn every expected failure into one line and its mend."""

import atexit
import errno
import gc
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import IO

from pullback.cli import _words
from pullback.cli._app import app
from pullback.cli._signals import Ended, ended_by, stopping_on_request
from pullback.cli._words import refuse_program, say
from pullback.errors import BrokenContractError, PullbackError
from pullback.internal._processes import STOP

__all__ = ["main"]

_USAGE_ERROR = 2
_REPORT = "  mend:     Run it again with --debug and report the traceback with pullback --version."


def _end_soon() -> None:
    """Spare the last search for cycles among all that torch has made: half a second.

    Where triton is loaded, it would tell what that search frees as leaked, in 30 lines.
    """
    if "triton" not in sys.modules:
        gc.freeze()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Arguments:
        arguments: the words after ``pullback``; ``sys.argv[1:]`` if ``None``. What follows
            ``--`` is a program and is passed on untouched.

    Returns:
        0 if everything is ok, 1 if something is broken, 2 for a usage error, 3 if something could
        not be checked, and 128 and the number of a signal that ended it. `record` ends as its
        program does.

    Example:
        >>> main(["--help"]) == 0  # doctest: +SKIP
        True
    """
    # Of this process alone: a program that checks at its end what it has applied ends as it would.
    atexit.register(_end_soon)
    # Where who started us has closed them, Python has none.
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # what it cannot take is written out
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    _words.program = None
    if "--" in words:
        place = words.index("--")
        words, _words.program = words[:place], words[place + 1 :]
    debug = "--debug" in words
    try:
        if _words.program is None:
            refuse_program(words)
        with stopping_on_request():
            status = app(args=words, prog_name="pullback", standalone_mode=False)
    except KeyboardInterrupt:
        say("Interrupted.")
        return 130
    except Ended:
        say("Asked to end.")
        return 128 + ended_by()
    except Exception as error:
        if debug:
            raise
        status = _tell(error)
        return 128 + ended_by() if STOP.is_set() else status
    return status if isinstance(status, int) else 0


def _tell(error: Exception) -> int:
    """Say what went wrong, and what to do; returns the status."""
    if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.ENOSPC):
        # What is left of the output is written nowhere; of a pipe the reader, as `head`, has gone.
        sys.stdout = _nowhere()
        if error.errno == errno.ENOSPC:
            say(f"{error.strerror}; not all was printed.")
        return _USAGE_ERROR
    if isinstance(error, OSError) and isinstance(error.filename, str):  # of the user's
        say(f"{error.filename}: {error.strerror}.\n  mend:     Make it readable, or name another.")
        return _USAGE_ERROR
    if isinstance(error, PullbackError):
        say(str(error))
        return 1 if isinstance(error, BrokenContractError) else _USAGE_ERROR
    # click's own errors, which typer may carry under a private name: known by what they can do.
    describe = getattr(error, "format_message", None)
    if describe is None:
        say(f"A fault of pullback: {type(error).__name__}: {error}\n{_REPORT}")
    elif describe():  # without a message the help has been printed
        command = getattr(getattr(error, "ctx", None), "command_path", "pullback")
        say(f"{describe()}\n  mend:     See: {command} --help")
    return _USAGE_ERROR


def _nowhere() -> IO[str]:
    return open(os.devnull, "w", encoding="utf-8")
