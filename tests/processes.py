"""Processes of others: whether they still run, and waiting for what they do."""

import contextlib
import ctypes
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["close_in_copies", "is_alive", "open_pipes", "use_large_pages", "wait_for"]

_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1 and later: one that does not know it changes nothing


def open_pipes() -> list[int]:
    """The pipes of this process but for its standard streams."""
    found = []
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):  # that by which the folder was read
            if int(name) > 2 and stat.S_ISFIFO(os.fstat(int(name)).st_mode):
                found.append(int(name))
    return found


def close_in_copies(pipes: Sequence[int]) -> None:
    """Let no copy of this process hold what another one hears the end of this process by."""

    def close() -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in pipes:  # taken, so that no file of the copy's is closed in its place
            os.dup2(nothing, number, inheritable=False)
        os.close(nothing)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=close)


def use_large_pages() -> None:
    """Have Linux keep the memory of this process in pages of 2 MB, where it can.

    Of a process of half a gigabyte a copy takes 15 ms of the system's time then, and 50 before:
    most of it is for the table of pages, which is copied and taken apart again.
    """
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        places, rights, *_, inode = line.split(maxsplit=5)[:5]
        if rights == "rw-p" and inode == "0":
            start, end = (int(place, 16) for place in places.split("-"))
            advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _COLLAPSE)


def is_alive(pid: int | str) -> bool:
    """Whether a process runs: one that has ended may not be buried yet."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def wait_for(condition: Callable[[], object], seconds: float = 90.0) -> None:
    """Wait until something holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)
