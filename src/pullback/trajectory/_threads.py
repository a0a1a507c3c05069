"""Run a kernel that releases the interpreter lock over slices of a batch, on torch's threads.

A small pool of Python threads and not numba's own: that one compiles for seconds, and its default
layer aborts the process when two threads call it at once.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

__all__ = ["run_in_slices"]

# Handing work to a thread costs some 20 us; below about this many elements one thread is faster.
_LEAST_ELEMENTS = 1 << 17

_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def run_in_slices(kernel: Callable[[int, int], None], batch: int, elements: int) -> None:
    """Call ``kernel(first, last)`` so that the slices cover ``range(batch)`` once.

    Arguments:
        kernel: works on one slice and releases the interpreter lock.
        batch: the number of independent items.
        elements: the size of the whole work, to decide whether threads are worth their cost.

    Example:
        >>> from pullback.trajectory._threads import run_in_slices
        >>> seen = []
        >>> run_in_slices(lambda first, last: seen.append((first, last)), batch=3, elements=10)
        >>> seen
        [(0, 3)]
    """
    threads = min(torch.get_num_threads(), batch, max(1, elements // _LEAST_ELEMENTS))
    if threads <= 1:
        kernel(0, batch)
        return
    bounds = [batch * part // threads for part in range(threads + 1)]
    pool = _pool(threads - 1)
    waiting = [pool.submit(kernel, bounds[part], bounds[part + 1]) for part in range(1, threads)]
    try:
        kernel(bounds[0], bounds[1])
    finally:
        # The others write into the same buffers: never leave while they run.
        for other in waiting:
            other.result()


def _pool(workers: int) -> ThreadPoolExecutor:
    with _lock:
        if workers not in _pools:
            _pools[workers] = ThreadPoolExecutor(workers, thread_name_prefix="pullback")
        return _pools[workers]


def _forget_pools() -> None:
    # A forked child has the pools but not their threads.
    global _lock  # noqa: PLW0603  # the parent may have held it while it forked
    _pools.clear()
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)
