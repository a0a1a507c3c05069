"""Start a worker as a copy of a process that has imported torch already: see `_forkserver`.

Importing torch takes a second or more, and a check starts several workers. The fork server of
`multiprocessing` would do so too, but its workers run the program that asks once more (its
``__main__``), which checks again; they keep the variables that it once had; and one that is killed
leaves what it has started.
"""

import atexit
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import weakref
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pullback.internal._forkserver import serve_as_copy
from pullback.internal._processes import (
    STOP,
    Child,
    Stopped,
    import_path,
    start_copy,
    start_module,
    temporary_place,
)
from pullback.internal._work_time import WorkTime, stat_fields

__all__ = ["prepare_worker", "start_worker"]

# Seconds of work: to import torch takes some.
_START_SECONDS = 120.0
_POLL = 0.02
_SERVER = "pullback.internal._forkserver"


def start_worker(module: str, folder: Path, *, loaded: str = "") -> Child:
    """Run ``module.main(folder)`` in a process of its own, as `start_module` does, but faster.

    That is a copy of the fork server, which has loaded a part of what it was told to prepare if one
    is named; or a fresh process, where there are no good copies.

    Raises:
        Stopped: `STOP` was set meanwhile.
    """
    if sys.platform == "linux":
        with contextlib.suppress(_Gone), _lock:
            return _current().start(module, folder, loaded)
    return start_module(module, folder)


def prepare_worker(module: str, *arguments: object, as_copy: bool = False) -> None:
    """Begin to import a module for workers that will be started soon.

    Then its ``warm(*arguments)``, a generator, is run part by part while nobody asks for a worker:
    it loads what the first call loads, so that no worker does, and gives the name of each part.
    Workers may be copies of this process as it is now where it has imported torch, and has not
    computed or loaded anything of anybody else.
    """
    if sys.platform == "linux":
        with contextlib.suppress(_Gone), _lock:
            _current(as_copy).tell({"prepare": module, "with": arguments})


class _Gone(Exception):
    """The server has ended, or cannot make good copies."""


class _Server:
    """The server as this process sees it. It ends when nothing here refers to it any more."""

    def __init__(self, environment: dict[str, str], *, as_copy: bool = False) -> None:
        self.environment = environment
        self._connection, theirs = Pipe()
        folder = Path(tempfile.mkdtemp(prefix="pullback-"))

        def serve() -> None:
            self._connection.close()  # so that the end of the original is heard
            serve_as_copy(theirs)

        with theirs:
            if as_copy:
                self._process = start_copy(serve, folder, lasting=True)
            else:
                self._process = start_module(_SERVER, folder, stdin=theirs.fileno())
        self._asking = threading.RLock()
        self._copies: set[int] = set()
        self.close = weakref.finalize(
            self, _close, os.getpid(), self._connection, self._process, self._copies, folder
        )

    def start(self, module: str, folder: Path, loaded: str) -> Child:
        """A copy of the server that runs the module."""
        request = {
            "start": module,
            "loaded": loaded,
            "folder": str(folder),
            "paths": import_path(),
            "current": os.getcwd(),
            "temporary": temporary_place(folder),
        }
        log = folder / "errors.txt"
        with self._asking:
            if not self._ask(request, stop=True):
                raise _Gone
            try:
                pid = self._answer()
            except _Gone:
                # What the copy runs may have killed the server: it is not run a second time.
                return _Copy(self._process.pid, log, lambda: -signal.SIGKILL)
            self._copies.add(pid)
        return _Copy(pid, log, lambda: self._end(pid))

    def tell(self, request: dict[str, Any]) -> None:
        """Send a request."""
        try:
            self._connection.send(request)
        except OSError:  # closed, or at its other end
            self.close()
            raise _Gone from None

    def is_gone(self) -> bool:
        """Whether it has ended."""
        return self._connection.closed or self._process.has_ended()

    def _ask(self, request: dict[str, Any], *, stop: bool = False) -> Any:
        self.tell(request)
        return self._answer(stop=stop)

    def _answer(self, *, stop: bool = False) -> Any:
        work = WorkTime(self._process.pid)
        try:
            while not self._connection.poll(_POLL):
                if stop and STOP.is_set():
                    self.close()  # its answer would be taken for that of the next question
                    raise Stopped
                if work.seconds > _START_SECONDS:
                    raise EOFError
            return self._connection.recv()
        except (EOFError, OSError):
            self.close()
            raise _Gone from None

    def _end(self, pid: int) -> int:
        try:
            with self._asking:
                return self._ask({"end": pid})
        except _Gone:
            return -signal.SIGKILL  # its copies end with it
        finally:
            self._copies.discard(pid)


def _close(
    owner: int, connection: Connection, process: Child, copies: set[int], folder: Path
) -> None:
    """End a server and its copies; a copy of its owner leaves them alone."""
    connection.close()
    if os.getpid() == owner:
        for pid in copies:  # with what they have started
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        process.end()
        shutil.rmtree(folder, ignore_errors=True)  # it may not have come so far


class _Copy(Child):
    """A child of the server, which keeps what is left of it until it is asked to end it."""

    def has_ended(self) -> bool:
        """Whether it has ended."""
        try:
            return stat_fields(f"/proc/{self.pid}")[0] in "ZX"
        except OSError:
            return True

    def end(self) -> int:
        """Have the server kill what is left of the group."""
        return self._reap()


_lock = threading.Lock()
_servers: list[_Server] = []  # one, or none yet


def _current(as_copy: bool = False) -> _Server:
    """The server that knows the variables of this process; torch reads some at its import.

    Where they have changed there is another; the one before ends with its last copy.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    if not _servers or _servers[0].environment != environment or _servers[0].is_gone():
        _servers[:] = [_Server(environment, as_copy=as_copy)]
    return _servers[0]


def _forget() -> None:
    """Be a copy of this process, which has no server."""
    global _lock  # noqa: PLW0603 - another thread of the original may hold it
    _lock = threading.Lock()
    for server in _servers:
        server.close()
    _servers.clear()


atexit.register(_servers.clear)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
