"""Compiling for the CPU: kept on disk where that can be; jobs whose slices are taken once each."""

import array
import threading

import numba
import numpy as np
import pytest

from pullback.internal.kernels._cpu import Entry, compile_kernel, take_slice
from pullback.internal.kernels.vectors._cpu import pointer_at


def count_items(job):
    counts = pointer_at(np.float64(0), job[3])
    number, first, last = take_slice(job)
    while number >= 0:
        for item in range(first, last):
            counts[item] += 1
        number, first, last = take_slice(job)


COUNT = Entry(count_items)


@pytest.mark.parametrize("items", [0, 1, 7, 64, 1001])
@pytest.mark.parametrize("slices", [1, 2, 7, 64])
def test_slices_cover_the_items_once(items, slices):
    counts = np.zeros(items)
    job = array.array("q", [0, slices, items, counts.ctypes.data])
    COUNT(job.buffer_info()[0])
    assert (counts == 1).all()


def test_threads_share_the_slices():
    items = 20_000
    for _ in range(20):
        counts = np.zeros(items)
        job = array.array("q", [0, 500, items, counts.ctypes.data])
        threads = [threading.Thread(target=COUNT, args=(job.buffer_info()[0],)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (counts == 1).all()


def test_division_by_zero_follows_the_standard():
    @compile_kernel()
    def divide(x, y):
        return x / y

    assert divide(1.0, 0.0) == np.inf


@pytest.mark.parametrize("what", ["njit", "cfunc"])
def test_where_nothing_can_be_kept_it_is_compiled_anew(monkeypatch, what):
    real, asked = getattr(numba, what), []

    def refuse(*args, cache=False, **options):
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available for file")
        return real(*args, **options)

    monkeypatch.setattr(numba, what, refuse)
    if what == "njit":

        @compile_kernel()
        def double(x):
            return x + x

        assert double(2.0) == 4.0
    else:
        counts = np.zeros(3)
        job = array.array("q", [0, 1, 3, counts.ctypes.data])
        Entry(count_items)(job.buffer_info()[0])
        assert (counts == 1).all()
    assert asked == [True, False]
