"""Run a compiled job on torch's own threads.

Threads of our own would compete with torch's: after each parallel operation the threads of
libgomp wait for the next one without letting go of their core, for milliseconds, and a kernel
that ran beside them took twice as long (benchmarks/bench_trajectory.py). So the job is handed to
that library's team, which is awake. Where torch runs on another library, or in a process that was
forked, whose team is gone, a small pool of Python threads takes its place. numba's own threads
would compile for seconds, and its default layer aborts when two threads call it at once.
"""

import array
import ctypes
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["count_slices", "count_threads", "in_memory", "run_job"]

# The elements of one thread at least: as many as in torch's own operations for its team, which is
# mostly awake; handing work to a thread of Python's costs a tenth of a millisecond.
_LEAST_FOR_TEAM = 1 << 15
_LEAST_FOR_POOL = 1 << 17

# A thread that the system holds up leaves its share to the others.
_SLICES_OF_A_THREAD = 4

_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


class _Entry(Protocol):
    @property
    def address(self) -> int: ...
    def __call__(self, job: int) -> None: ...


def in_memory(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor whose memory holds the values one after the other, for its address.

    Arguments:
        tensor: any shape; returned as it is where that holds already.
        dtype: what the values are converted to.
    """
    if tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    return tensor.resolve_neg().contiguous()


def count_threads(items: int, elements: int) -> int:
    """Return how many threads a job is worth.

    Arguments:
        items: the number of independent items.
        elements: the size of the whole work.
    """
    least = _LEAST_FOR_POOL if _team is None else _LEAST_FOR_TEAM
    return min(torch.get_num_threads(), items, max(1, elements // least))


def count_slices(items: int, threads: int) -> int:
    """Return into how many slices a job is cut.

    Arguments:
        items: the number of independent items.
        threads: as `count_threads` returned it.
    """
    return min(items, _SLICES_OF_A_THREAD * threads) if threads > 1 else 1


def run_job(entry: _Entry, items: int, threads: int, numbers: list[int]) -> None:
    """Run a job until each of its slices has been worked on once.

    Arguments:
        entry: `pullback.internal.kernels._cpu.Entry`.
        items: the number of independent items.
        threads: as `count_threads` returned it.
        numbers: what follows the first three numbers of the job.
    """
    job = array.array("q", [0, count_slices(items, threads), items, *numbers])
    address = job.buffer_info()[0]
    if threads <= 1:
        entry(address)
    elif _team is not None:
        _team(entry.address, address, threads, 0)
    else:
        _run_in_pool(entry, address, threads)


def _run_in_pool(entry: _Entry, job: int, threads: int) -> None:
    with _lock:
        if threads not in _pools:
            _pools[threads] = ThreadPoolExecutor(threads - 1, thread_name_prefix="pullback")
        pool = _pools[threads]
    waiting = [pool.submit(entry, job) for _ in range(threads - 1)]
    try:
        entry(job)
    finally:
        # The others write into the same buffers: never leave while they run.
        for other in waiting:
            other.result()


def _find_team() -> Any:
    """Return the function of the OpenMP library in this process that runs another on its team."""
    if sys.platform == "win32":
        return None
    try:
        # Only if it is loaded already, by torch: another library would bring threads of its own.
        library = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        run = library.GOMP_parallel
    except (OSError, AttributeError):
        return None
    # void GOMP_parallel(void (*function)(void *), void *data, unsigned threads, unsigned flags)
    run.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    run.restype = None
    return run


_team = _find_team()


def _start_anew() -> None:
    # A forked child has the team and the pools but not their threads.
    global _team, _lock  # noqa: PLW0603  # the parent may have held the lock while it forked
    _team = None
    _pools.clear()
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
