"""Start a worker as a copy of a process that has imported torch already: the fork server.

The server imports what workers of ours need and does nothing else: it has no other thread, no
device and no module of anybody else, so a copy of it is as good as a fresh process. It is a process
of its own, or a copy of a command of ours that has only just imported torch, which spares one
import. It is asked for a copy, and to end it. While nobody asks it runs once what workers run, for
what is loaded at the first call only: torch's compiler takes seconds. It ends with the process that
started it, or where nobody has asked for long, and all its copies with it.

Importing torch takes a second or more, and a check starts several workers. The fork server of
`multiprocessing` would do so too, but its workers run the program that asks once more (its
``__main__``), which checks again; they keep the variables that it once had; and one that is killed
leaves what it has started.
"""

import atexit
import contextlib
import gc
import importlib
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from pullback.internal._processes import (
    STOP,
    Child,
    Stopped,
    compiler_variables,
    import_path,
    start_copy,
    start_module,
    temporary_place,
)
from pullback.internal._work_time import WorkTime, stat_fields

__all__ = ["prepare_worker", "start_worker"]


# Seconds of work: to import torch takes some.
_START_SECONDS = 120.0
_PATIENCE = 2.0  # seconds, in which a server ends its copies
_POLL = 0.02
_SERVER = "pullback.internal._workers"


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
            _current(as_copy).tell("prepare", module, *arguments)


class _Gone(Exception):
    """The server has ended, or cannot make good copies."""


class _Client:
    """The server as this process sees it. It ends when nothing here refers to it any more."""

    def __init__(self, environment: dict[str, str], *, as_copy: bool = False) -> None:
        self.environment = environment
        self._connection, theirs = Pipe()
        folder = Path(tempfile.mkdtemp(prefix="pullback-"))

        def serve() -> None:
            self._connection.close()  # so that the end of the original is heard
            _serve_as_copy(theirs)

        with theirs:
            if as_copy:
                self._process = start_copy(serve, folder, lasting=True)
            else:
                self._process = start_module(_SERVER, folder, stdin=theirs.fileno())
        self._asking = threading.RLock()
        self.close = weakref.finalize(
            self, _close, os.getpid(), self._connection, self._process, folder
        )

    def start(self, module: str, folder: Path, loaded: str) -> Child:
        """A copy of the server that runs the module."""
        log, here = folder / "errors.txt", (import_path(), os.getcwd(), temporary_place(folder))
        with self._asking:
            if not self._ask("start", module, loaded, folder, *here, stop=True):
                raise _Gone
            try:
                pid = self._answer()
            except _Gone:
                # What the copy runs may have killed the server: it is not run a second time.
                return _Copy(self._process.pid, log, lambda: -signal.SIGKILL)
        return _Copy(pid, log, lambda: self._end(pid))

    def tell(self, *request: object) -> None:
        """Send a request."""
        try:
            self._connection.send(request)
        except OSError:  # closed, or at its other end
            self.close()
            raise _Gone from None

    def is_gone(self) -> bool:
        """Whether it has ended."""
        return self._connection.closed or self._process.has_ended()

    def _ask(self, *request: object, stop: bool = False) -> Any:
        self.tell(*request)
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
                return self._ask("end", pid)
        except _Gone:
            return -signal.SIGKILL  # its copies end with it


def _close(owner: int, connection: Connection, process: Child, folder: Path) -> None:
    """End a server and its copies; a copy of its owner leaves them alone.

    It is the server that ends its copies, with what they have started: their numbers are theirs as
    long as it has not waited for them.
    """
    connection.close()
    if os.getpid() == owner:
        process.ask_to_end()
        until = time.monotonic() + _PATIENCE
        while not process.has_ended() and time.monotonic() < until:
            time.sleep(_POLL / 10)
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
_servers: list[_Client] = []  # one, or none yet


def _current(as_copy: bool = False) -> _Client:
    """The server that knows the variables of this process; torch reads some at its import.

    Where they have changed there is another; the one before ends with its last copy.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    if not _servers or _servers[0].environment != environment or _servers[0].is_gone():
        _servers[:] = [_Client(environment, as_copy=as_copy)]
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


_IDLE_SECONDS = 60.0
# What torch imports at the first call that needs it, as most do: sympy.
_AT_FIRST = "torch.fx.experimental.symbolic_shapes"


class _Server:
    """What is asked for, one request after the other."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._children: dict[int, Child] = {}
        self._prepared: set[tuple[object, ...]] = set()
        self._warming: Iterator[str] = iter(())
        self._loaded = {""}

    def serve(self, parent: int) -> None:
        """Answer until the other side is gone, or nobody has asked for long."""
        since = time.monotonic()  # by the clock: nobody waits for it
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            while os.getppid() == parent and (
                self._children or time.monotonic() - since < _IDLE_SECONDS
            ):
                # While nobody asks there is time for what the first call loads.
                if not self._is_asked(0.0) and self._goes_on():
                    continue
                if self._is_asked(1.0):
                    self._answer(*self._connection.recv())
                    since = time.monotonic()
        except (EOFError, OSError, KeyboardInterrupt):
            pass
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            for child in self._children.values():
                child.end()
            os._exit(0)

    def _is_asked(self, seconds: float) -> bool:
        return bool(select.select([self._connection], [], [], seconds)[0])

    def _goes_on(self) -> bool:
        """Do the next part of what is run once; false when all is done, or cannot be."""
        try:
            self._loaded.add(next(self._warming))
        except Exception:
            return False
        return True

    def _answer(self, what: str, *request: Any) -> None:
        if what == "prepare" and request not in self._prepared:
            self._prepared.add(request)
            module, *arguments = request
            self._warming = _import(module).warm(*arguments)
        elif what == "start":
            module, loaded, *place = request
            while loaded not in self._loaded and self._goes_on():
                pass
            imported = _import(module)
            # A lock that another thread holds is never opened in a copy. Those of OpenBLAS end at
            # a fork.
            good = threading.active_count() == 1
            self._connection.send(good)
            if good:
                self._connection.send(self._start(imported, *place))
        elif what == "end":
            [pid] = request
            self._connection.send(self._children.pop(pid).end())

    def _start(
        self, module: ModuleType, folder: Path, paths: list[str], current: str, temporary: str
    ) -> int:
        def work() -> None:
            self._connection.close()
            self._children.clear()
            os.environ["TMPDIR"], tempfile.tempdir = temporary, None
            sys.path[:] = paths
            os.chdir(current)
            importlib.invalidate_caches()
            module.main(folder)

        # A collection in a copy writes to every object there is, and so copies all of the memory.
        gc.freeze()
        child = start_copy(work, folder)
        self._children[child.pid] = child
        return child.pid


def _import(name: str) -> ModuleType:
    module = importlib.import_module(name)
    if "torch" in sys.modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(_AT_FIRST)
    return module


def _serve_as_copy(connection: Connection) -> None:
    """Serve the process that this one is a copy of, which has imported torch and done no more."""
    del sys.argv[1:]
    warnings.simplefilter("ignore")
    os.environ |= {"PULLBACK_PARENT": str(os.getppid()), **compiler_variables()}
    _Server(connection).serve(os.getppid())


def _main() -> None:
    """Serve the process that has started this one, over standard input."""
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    connection = Connection(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    _Server(connection).serve(int(os.environ["PULLBACK_PARENT"]))


if __name__ == "__main__":
    _main()
