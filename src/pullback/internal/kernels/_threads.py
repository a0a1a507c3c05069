"""Run a compiled kernel over slices of a batch, on the threads of one pool.

Kernels release the interpreter's lock, so that Python's own threads will do, on every system. The
threads of torch's library are awake after an operation of torch's, but wait for one another without
letting go of their cores: where other work ran beside them they were many times slower.
numba's own threads compile for seconds, and its default layer aborts when two threads call it.
"""

import functools
import itertools
import math
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pullback.internal.kernels._backend import Backend, backend_used

__all__ = ["ZEROS", "count_threads", "in_memory", "run_slices", "threads_used"]

# What a kernel learns from of which type the numbers are that lie at an address.
ZEROS = {torch.float32: np.float32(0), torch.float64: np.float64(0)}

# The elements of one thread at least: handing work to a thread costs a tenth of a millisecond.
_LEAST = 1 << 17

# A thread that the system holds up leaves its share to the others.
_SLICES_OF_A_THREAD = 4

_MOST = 256  # threads in all; each is started when none is idle


def in_memory(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor whose memory holds the values one after the other, itself if it does so."""
    if tensor.dtype is dtype and tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    return tensor.detach().to(dtype).resolve_neg().contiguous()


def count_threads(items: int, elements: int) -> int:
    """Return how many threads independent items are worth, at most as many as torch's."""
    worth = elements // _LEAST
    return 1 if worth < 2 else max(1, min(torch.get_num_threads(), items, worth))


def threads_used(position: Tensor, backend: Backend = "auto") -> int:
    """Return on how many threads the kernels of `differentiate` run for a tensor.

    They are Python's own, at most as many as `torch.get_num_threads` says; one where the work is
    not worth a second; none where `backend_used` is not ``"cpu"``, as torch or the GPU sees to it.

    Arguments:
        position: the tensor that the function is given.
        backend: what the function is asked for.

    Raises:
        ArgumentError: the backend is unknown.
        ArgumentTypeError: not a tensor.
        MissingExtraError: the backend asked for is not installed.
        UnsupportedError: the backend asked for does not run on the tensor's device.

    Example:
        >>> import torch
        >>> from pullback.trajectory import threads_used
        >>> threads_used(torch.zeros(5, 7)), threads_used(torch.zeros(5, 7), "reference")
        (1, 0)
    """
    if backend_used(position, backend) != "cpu":
        return 0
    return count_threads(math.prod(position.shape[:-2]), position.numel())


def run_slices(
    kernel: Callable[..., object], arguments: dict[str, Any], items: int, threads: int
) -> None:
    """Call a kernel with arguments and, for each slice, its first item and the one after its last.

    Returns when all slices are done, an interruption notwithstanding: threads write into buffers
    that nobody keeps for them. The kernel releases the interpreter's lock. It gets all arguments by
    name, also ``first`` and ``last``: addresses in another order would be an end of the process, or
    another tensor's numbers.
    """
    if threads <= 1:
        kernel(**arguments, first=0, last=items)
        return
    slices, numbers = min(items, _SLICES_OF_A_THREAD * threads), itertools.count()

    def work() -> None:
        for number in numbers:  # the interpreter counts for one thread at a time
            if number >= slices:
                return
            first, last = items * number // slices, items * (number + 1) // slices
            kernel(**arguments, first=first, last=last)

    others = [_pool().submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        _wait(others)


def _wait(others: list[Future[None]]) -> None:
    interruption: BaseException | None = None
    for other in others:
        while not other.done():
            try:
                other.exception()
            except BaseException as error:  # an interruption waits, too
                interruption = error
    if interruption is not None:
        raise interruption
    for other in others:
        other.result()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST, thread_name_prefix="pullback")


if hasattr(os, "register_at_fork"):
    # A forked child has the pool but not its threads, and may have it locked.
    os.register_at_fork(after_in_child=_pool.cache_clear)
