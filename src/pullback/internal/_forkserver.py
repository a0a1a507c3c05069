"""The fork server: a process that has imported torch, and is copied for each worker.

It imports what workers of ours need and does nothing else: it has no other thread, no device and no
module of anybody else, so a copy of it is as good as a fresh process. It is asked for a copy, and
to end it. While nobody asks it runs once what workers run, for what is loaded at the first call
only: torch's compiler takes seconds. It ends with the process that started it, or where nobody
has asked for long, and all its copies with it.
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
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from pullback.internal._processes import Child, start_copy

__all__ = ["main"]

_IDLE_SECONDS = 60.0
# What torch imports at the first call that needs it, as most do: sympy.
_AT_FIRST = "torch.fx.experimental.symbolic_shapes"


def _serve(connection: Connection, parent: int) -> None:
    """Answer until the other side is gone."""
    children: dict[int, Child] = {}
    warming: Iterator[object] = iter(())
    since = time.monotonic()  # by the clock: nobody waits for it
    try:
        while os.getppid() == parent and (children or time.monotonic() - since < _IDLE_SECONDS):
            if not select.select([connection], [], [], 0.0)[0] and _goes_on(warming):
                continue
            if not select.select([connection], [], [], 1.0)[0]:
                continue
            request = connection.recv()
            since = time.monotonic()
            if "import" in request:
                _import(request["import"])
            elif "prepare" in request:
                warming = _import(request["prepare"]).warm()
            elif "start" in request:
                while request["warm"] and _goes_on(warming):
                    pass
                _import(request["start"])
                # A lock that another thread holds is never opened in a copy. Those of OpenBLAS end
                # at a fork.
                good = threading.active_count() == 1
                connection.send(good)
                if good:
                    connection.send(_start(request, connection, children))
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
        with contextlib.suppress(ImportError):
            importlib.import_module(_AT_FIRST)
    return module


def _goes_on(warming: Iterator[object]) -> bool:
    """Do the next part of what is run once; false when all is done, or cannot be."""
    try:
        next(warming)
    except Exception:
        return False
    return True


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

    # A collection in a copy writes to every object there is, and so copies all of the memory.
    gc.freeze()
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
