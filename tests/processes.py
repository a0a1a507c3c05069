"""Processes of others: whether they still run, and waiting for what they do."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["is_alive", "wait_for"]


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
