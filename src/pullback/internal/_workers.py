"""Start a worker as a copy of a process that has imported torch already: see `_forkserver`.

Importing torch takes a second or more, and a check starts several workers.
"""

import atexit
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from pullback.internal._processes import (
    STOP,
    Child,
    Stopped,
    import_path,
    start_module,
    temporary_place,
)
from pullback.internal._work_time import WorkTime

__all__ = ["prepare_worker", "start_worker"]

# Seconds of work: to import torch takes some.
_START_SECONDS = 120.0
_END_SECONDS = 60.0
_POLL = 0.02
_SERVER = "pullback.internal._forkserver"


def start_worker(module: str, folder: Path, *, warm: bool = False) -> Child:
    """Run ``module.main(folder)`` in a process of its own, as `start_module` does, but faster.

    Arguments:
        module: the full name of a module.
        folder: is handed to it, and takes what it prints as errors.
        warm: wait until the copied process has loaded what the first call loads.

    Returns:
        The process: a copy of the fork server, or a fresh one where there are no good copies.

    Raises:
        Stopped: `STOP` was set meanwhile.
    """
    if sys.platform == "linux":
        with contextlib.suppress(_Gone), _servers.lock:
            return _servers.current().start(module, folder, warm=warm)
    return start_module(module, folder)


def prepare_worker(module: str, *arguments: object) -> None:
    """Begin to import a module for workers that will be started soon.

    Then its ``warm(*arguments)``, a generator, is run part by part while nobody asks for a worker:
    it loads what the first call loads, so that no worker does.
    """
    if sys.platform == "linux":
        with contextlib.suppress(_Gone), _servers.lock:
            _servers.current().tell({"prepare": module, "with": arguments})


class _Gone(Exception):
    """The server has ended, or cannot make good copies."""


class _Server:
    """The server as this process sees it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self._connection, theirs = Pipe()
        with theirs:
            self._folder = Path(tempfile.mkdtemp(prefix="pullback-"))
            self._process = start_module(_SERVER, self._folder, stdin=theirs.fileno())
        self._asking = threading.RLock()
        self._living: set[int] = set()
        self._retired = False

    def start(self, module: str, folder: Path, *, warm: bool) -> Child:
        """A copy of the server that runs the module."""
        request = {
            "start": module,
            "warm": warm,
            "folder": str(folder),
            "paths": import_path(),
            "current": os.getcwd(),
            "temporary": temporary_place(folder),
        }
        log = folder / "errors.txt"
        with self._asking:
            self.tell(request)
            if not self._answer(_START_SECONDS, stop=True):
                raise _Gone
            try:
                pid = self._answer(_END_SECONDS)
            except _Gone:
                # What the copy runs may have killed the server: it is not run a second time.
                return Child(self._process.pid, log, lambda: True, lambda: -signal.SIGKILL)
            self._living.add(pid)
        return Child(pid, log, lambda: _has_ended(pid), lambda: self._end(pid))

    def tell(self, request: dict[str, Any]) -> None:
        """Send a request."""
        if self._connection.closed:
            raise _Gone
        try:
            self._connection.send(request)
        except OSError:
            self.close()
            raise _Gone from None

    def retire(self) -> None:
        """Close it when its last copy has ended."""
        with self._asking:
            self._retired = True
            if not self._living:
                self.close()

    def gone(self) -> bool:
        """Whether it has ended."""
        if not self._connection.closed and self._process.has_ended():
            self.close()
        return self._connection.closed

    def close(self) -> None:
        """End it and its copies."""
        if self._connection.closed:
            return
        self._connection.close()
        for pid in self._living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self._process.end()
        shutil.rmtree(self._folder, ignore_errors=True)  # it may not have come so far

    def forget(self) -> None:
        """Be no more than a copy of what another process owns."""
        self._connection.close()

    def _answer(self, limit: float, *, stop: bool = False) -> Any:
        work = WorkTime(self._process.pid)
        try:
            while not self._connection.poll(_POLL):
                if stop and STOP.is_set():
                    self.close()  # its answer would be taken for that of the next question
                    raise Stopped
                if work.seconds > limit:
                    raise EOFError
            return self._connection.recv()
        except (EOFError, OSError):
            self.close()
            raise _Gone from None

    def _ask(self, request: dict[str, Any]) -> Any:
        with self._asking:
            self.tell(request)
            return self._answer(_END_SECONDS)

    def _end(self, pid: int) -> int:
        try:
            return self._ask({"end": pid})
        except _Gone:
            return -signal.SIGKILL  # its copies end with it
        finally:
            with self._asking:
                self._living.discard(pid)
                if self._retired and not self._living:
                    self.close()


def _has_ended(pid: int) -> bool:
    """Whether a copy has ended: the server keeps what is left of it until it is asked to end it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


class _Servers:
    """The server of this process; there is another where variables have changed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._server: _Server | None = None

    def current(self) -> _Server:
        """The server that knows the variables of this process; torch reads some at its import."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
        }
        server = self._server
        if server is not None and (server.environment != environment or server.gone()):
            server.retire()
            server = None
        self._server = server or _Server(environment)
        return self._server

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.close()

    def forget(self) -> None:
        """Be those of a copy of this process, which has none."""
        if self._server is not None:
            self._server.forget()
        self.lock, self._server = threading.Lock(), None


_servers = _Servers()
atexit.register(_servers.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_servers.forget)
