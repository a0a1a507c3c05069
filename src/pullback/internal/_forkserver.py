"""The fork server: a process that has imported torch, and is copied for each worker.

It imports what workers of ours need and does nothing else: it has no other thread, no device and no
module of anybody else, so a copy of it is as good as a fresh process. It is a process of its own,
or a copy of a command of ours that has only just imported torch, which spares one import. It is
asked for a copy, and to end it. While nobody asks it runs once what workers run, for what is loaded
at the first call only: torch's compiler takes seconds. It ends with the process that started it, or
where nobody has asked for long, and all its copies with it.
"""

import contextlib
import gc
import importlib
import os
import select
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from pullback.internal._processes import Child, compiler_variables, start_copy

__all__ = ["main", "serve_as_copy"]

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
        try:
            while os.getppid() == parent and (
                self._children or time.monotonic() - since < _IDLE_SECONDS
            ):
                # While nobody asks there is time for what the first call loads.
                if not self._is_asked(0.0) and self._goes_on():
                    continue
                if self._is_asked(1.0):
                    self._answer(self._connection.recv())
                    since = time.monotonic()
        except (EOFError, OSError):
            pass
        finally:
            for child in self._children.values():
                child.end()

    def _is_asked(self, seconds: float) -> bool:
        return bool(select.select([self._connection], [], [], seconds)[0])

    def _goes_on(self) -> bool:
        """Do the next part of what is run once; false when all is done, or cannot be."""
        try:
            self._loaded.add(next(self._warming))
        except Exception:
            return False
        return True

    def _answer(self, request: dict[str, Any]) -> None:
        if "prepare" in request:
            asked = request["prepare"], request["with"]
            if asked not in self._prepared:
                self._prepared.add(asked)
                self._warming = _import(request["prepare"]).warm(*request["with"])
        elif "start" in request:
            while request["loaded"] not in self._loaded and self._goes_on():
                pass
            module = _import(request["start"])
            # A lock that another thread holds is never opened in a copy. Those of OpenBLAS end at
            # a fork.
            good = threading.active_count() == 1
            self._connection.send(good)
            if good:
                self._connection.send(self._start(module, request))
        else:
            self._connection.send(self._children.pop(request["end"]).end())

    def _start(self, module: ModuleType, request: dict[str, Any]) -> int:
        folder = Path(request["folder"])

        def work() -> None:
            self._connection.close()
            self._children.clear()
            os.environ["TMPDIR"], tempfile.tempdir = request["temporary"], None
            sys.path[:] = request["paths"]
            os.chdir(request["current"])
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


def serve_as_copy(connection: Connection) -> None:
    """Serve the process that this one is a copy of, which has imported torch and done no more."""
    del sys.argv[1:]
    warnings.simplefilter("ignore")
    os.environ |= {"PULLBACK_PARENT": str(os.getppid()), **compiler_variables()}
    _Server(connection).serve(os.getppid())


def main() -> None:
    """Serve the process that has started this one, over standard input."""
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    connection = Connection(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    _Server(connection).serve(int(os.environ["PULLBACK_PARENT"]))


if __name__ == "__main__":
    main()
