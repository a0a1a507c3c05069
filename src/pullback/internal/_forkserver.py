"""The fork server: a process that has imported torch, and is copied for each worker.

It imports what workers of ours need and does nothing else: it has no other thread, no device and no
module of anybody else, so a copy of it is as good as a fresh process. It is asked for a copy, for
whether the copy has ended, and to end it. It ends with the process that started it, or where nobody
has asked for long, and all its copies with it.
"""

import contextlib
import importlib
import os
import select
import shutil
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from pullback.internal._processes import Child, start_copy

__all__ = ["main"]

_IDLE_SECONDS = 60.0
# What torch imports at the first call that needs it, as most do: sympy soon, its compiler late.
_AT_FIRST = "torch.fx.experimental.symbolic_shapes"
_MANY = 3


def _serve(connection: Connection, parent: int) -> None:
    """Answer until the other side is gone."""
    children: dict[int, Child] = {}
    started = 0
    since = time.monotonic()
    try:
        while os.getppid() == parent and (children or time.monotonic() - since < _IDLE_SECONDS):
            if not select.select([connection], [], [], 1.0)[0]:
                continue
            request = connection.recv()
            since = time.monotonic()
            if "import" in request:
                _import(request["import"])
            elif "start" in request:
                started += 1
                good = _prepare(request["start"], started)
                connection.send(good)
                if good:
                    connection.send(_start(request, connection, children))
            elif "ended" in request:
                connection.send(children[request["ended"]].has_ended())
            else:
                connection.send(children.pop(request["end"]).end())
    except (EOFError, OSError):
        pass
    finally:
        for child in children.values():
            child.end()


def _import(name: str) -> ModuleType:
    module = importlib.import_module(name)
    if "torch" in sys.modules:
        _import_late(_AT_FIRST)
    return module


def _import_late(name: str) -> None:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)


def _prepare(name: str, number: int) -> bool:
    """Import what the copy runs; says whether a copy is as good as a fresh process."""
    _import(name)
    if number >= _MANY and "torch" in sys.modules:
        _import_late(sys.modules["pullback.internal.torch"].COMPILER)
    # A lock that another thread holds is never opened in a copy. Those of OpenBLAS end at a fork.
    return threading.active_count() == 1


def _start(request: dict[str, Any], connection: Connection, children: dict[int, Child]) -> int:
    module = importlib.import_module(request["start"])
    folder = Path(request["folder"])

    def work() -> None:
        connection.close()
        children.clear()
        os.environ["TMPDIR"], tempfile.tempdir = request["temporary"], None
        sys.path[:] = request["paths"]
        os.chdir(request["current"])
        importlib.invalidate_caches()
        module.main(folder)

    child = start_copy(work, folder)
    children[child.pid] = child
    return child.pid


def main() -> None:
    """Serve the process that has started this one, over standard input."""
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    connection = Connection(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    _serve(connection, int(os.environ["PULLBACK_PARENT"]))


if __name__ == "__main__":
    main()
