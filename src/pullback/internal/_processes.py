"""Processes of ours: each leads a group of its own, and all of the group ends with it.

What a process of ours runs is somebody else's code: it may hang, die, fork, print without end or
outlive whoever started it. A supervised process is polled; when it ends, for whatever reason, what
it has forked is killed before its number can be given to anybody else.
"""

import contextlib
import ctypes
import faulthandler
import getpass
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

__all__ = [
    "STOP",
    "Child",
    "Stopped",
    "compiler_variables",
    "count_cores",
    "describe_end",
    "die_with",
    "handled",
    "import_path",
    "signal_name",
    "start_copy",
    "start_module",
    "supervise",
    "tail",
    "temporary_place",
]

STOP = threading.Event()
"""Set when this process is asked to end: every supervised process is killed at once."""

_POLL = 0.03
_LOG_BYTES = 2**20
_TAIL = 4096
_SET_PARENT_DEATH_SIGNAL = 1


def count_cores() -> int:
    """How many cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cores or 1


class Stopped(Exception):
    """This process was asked to end while another one worked for it."""


class Child:
    """A process that leads a group, started by this one.

    Arguments:
        pid: its number, and that of its group; taken until `end`.
        log: the file that takes its standard error, kept short.
        reap: waits for its end, and returns its status.
    """

    def __init__(self, pid: int, log: Path, reap: Callable[[], int]) -> None:
        self.pid, self.log, self._reap = pid, log, reap

    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._has_ended() is not False

    def _has_ended(self) -> bool | None:
        """``None`` where the program waits for whatever child has ended, and got this one."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return None

    def end(self) -> int:
        """Kill what is left of the group; the status of its leader, negative for a signal."""
        if self._has_ended() is not None:  # or its number may be that of another group by now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        return self._reap()

    def ask_to_end(self) -> None:
        """Send it SIGTERM, alone of its group."""
        if self._has_ended() is False:
            os.kill(self.pid, signal.SIGTERM)

    def shorten(self) -> None:
        """Drop what it has printed once that is more than anybody reads."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > _LOG_BYTES:
                os.truncate(self.log, 0)


def start_module(module: str, folder: Path, stdin: int = subprocess.DEVNULL) -> Child:
    """Run ``python -m module folder`` with the import path of this process.

    Temporary files that it leaves go with the folder. It reads from a descriptor, or nothing.
    """
    paths = os.pathsep.join(import_path())
    variables = {"PYTHONPATH": paths, "TMPDIR": temporary_place(folder), **compiler_variables()}
    variables["PULLBACK_PARENT"] = str(os.getpid())
    log = folder / "errors.txt"
    # -P: a file beside a recording that somebody sent may have the name of a standard module.
    words = [sys.executable, "-P", "-W", "ignore", "-m", module, str(folder)]
    with log.open("ab") as stream:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            words,
            env={**os.environ, **variables},
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=stream,
            start_new_session=True,
        )
    return Child(process.pid, log, process.wait)


def import_path() -> list[str]:
    """Where this process looks for modules, whatever folder is the current one later."""
    return [entry or os.getcwd() for entry in sys.path]


def temporary_place(folder: Path) -> str:
    """Make the folder that takes the temporary files of a process, and go with ``folder``."""
    place = folder / "temporary"
    place.mkdir(exist_ok=True)
    return str(place)


def start_copy(
    work: Callable[[], object], folder: Path | None = None, *, lasting: bool = False
) -> Child:
    """Run ``work`` in a copy of this process, which then ends without its clean-ups.

    The folder takes what the copy prints as errors. A lasting one ends by itself when this process
    does; any other is ended by the kernel, which does so when the thread ends that has made it.
    """
    log = Path(os.devnull) if folder is None else folder / "errors.txt"
    log.touch()
    parent = os.getpid()
    with warnings.catch_warnings():
        # Newer Pythons warn where there are threads: the copy computes in one, and is supervised.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _be_copy(work, log, None if lasting else parent)
    with contextlib.suppress(OSError):  # the copy does the same: whoever comes first
        os.setpgid(pid, pid)

    def reap() -> int:
        with contextlib.suppress(ChildProcessError):
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return 0

    return Child(pid, log, reap)


def _be_copy(work: Callable[[], object], log: Path, parent: int | None) -> None:
    status = 1
    try:
        faulthandler.disable()  # how the copy ends is told by who made it
        if parent is not None:
            die_with(parent)
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0)
        null = os.open(os.devnull, os.O_RDWR)
        errors = os.open(log, os.O_WRONLY | os.O_APPEND)
        for number, target in ((0, null), (1, null), (2, errors)):
            os.dup2(target, number)
        if "torch" in sys.modules:
            # The threads of the original are not in the copy, which would wait for them.
            sys.modules["torch"].set_num_threads(1)
        work()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(status)


def supervise(child: Child, give_up: Callable[[], str]) -> tuple[int, str]:
    """Wait for a process, and end it with all that it has forked.

    ``give_up`` is asked all the time: it says why the process is not waited for any longer, or has
    an empty text. Returns the status of the process, and that text.

    Raises:
        Stopped: `STOP` was set meanwhile.
    """
    reason = ""
    try:
        while not child.has_ended():
            reason = give_up()
            if reason:
                break
            child.shorten()
            if STOP.wait(_POLL):
                raise Stopped
    finally:
        status = child.end()
    return status, reason


@contextlib.contextmanager
def handled(
    names: Iterable[str], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """Have signals answered in the main thread; those that we are told to ignore stay ignored."""
    before = {}
    try:
        if threading.current_thread() is threading.main_thread():  # no other gets signals
            for number in filter(None, (getattr(signal, name, None) for name in names)):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as by nohup
                    before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def tail(log: Path) -> str:
    """The last line of what a process has printed, or an empty text."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _TAIL))
        lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def describe_end(status: int, log: Path | None = None) -> str:
    """How a process ended, in words; empty for a clean end.

    Example:
        >>> describe_end(-9)
        'The process was killed by SIGKILL.'
    """
    if status >= 0:
        told = (tail(log) if log else "") or "no message"
        return f"The process ended with status {status}: {told}" if status else ""
    return f"The process was killed by {signal_name(-status)}."


def signal_name(number: int) -> str:
    """``"SIGKILL"`` and the like; a real-time signal has a number alone."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def die_with(parent: int) -> None:
    """End this process, and what it forks, when the one that started it dies, or is killed."""
    line = [parent]

    def before() -> None:
        line[:] = [os.getpid()]

    def end_with_parent() -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != line[0]:
            os._exit(1)

    # The kernel forgets in a fork what was asked for.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_child=end_with_parent)
    end_with_parent()


def compiler_variables() -> dict[str, str]:
    """Keep the cache of torch's compiler where it would be without us; start no pool for it."""
    user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    place = os.path.join(tempfile.gettempdir(), f"torchinductor_{user}")
    # A process of the pool imports a torch of its own, for the few kernels of one Function.
    usual = {"TORCHINDUCTOR_CACHE_DIR": place, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return {name: os.environ.get(name, value) for name, value in usual.items()}
