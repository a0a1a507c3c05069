"""Run jobs side by side in threads that nothing waits for when the command is interrupted.

Those of a `concurrent.futures.ThreadPoolExecutor` are waited for when Python ends.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from pullback.internal._processes import STOP, count_cores

__all__ = ["run_jobs", "side_by_side"]

_JOB_BYTES = 2**30  # what a check of a Function of some megabytes takes, its compiler included
_GRACE = 4.0  # seconds in which a job that was told to stop says what it knows


def side_by_side() -> int:
    """How many checks run side by side: one on each core, as far as there is memory for them.

    Example:
        >>> side_by_side() >= 1
        True
    """
    return max(1, min(count_cores(), _free_bytes() // _JOB_BYTES))


def _free_bytes() -> int:
    """The memory that is free, of the machine and of the container that this process is in."""
    found = [2**63]
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        [line] = [line for line in lines if line.startswith("MemAvailable:")]
        found.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most, now = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        found.append(most - now)
    return min(found)


def run_jobs(jobs: Sequence[Callable[[], Any]], workers: int) -> Iterator[Any]:
    """Yield the answer of each job in order.

    ``None`` of one that was not run or has not ended in time. With one worker jobs run in this very
    thread. What a job raises is raised here.
    """
    if workers < 2:
        for job in jobs:
            yield None if STOP.is_set() else job()
        return
    waiting: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
    futures: list[Future[Any]] = [Future() for _ in jobs]
    for pair in zip(futures, jobs, strict=True):
        waiting.put(pair)

    def work() -> None:
        while not (STOP.is_set() or waiting.empty()):
            with suppress(queue.Empty):  # another thread was first
                future, job = waiting.get_nowait()
                try:
                    future.set_result(job())
                except BaseException as error:
                    future.set_exception(error)

    for _ in range(workers):
        threading.Thread(target=work, daemon=True).start()
    for future in futures:
        while not (future.done() or STOP.is_set()):
            wait([future], 0.1)
        wait([future], _GRACE)
        yield future.result() if future.done() else None
