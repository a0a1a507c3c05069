"""Slices of work: each done once, whatever threads do, interruptions and forks included."""

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from pullback.internal.kernels import _threads
from pullback.internal.kernels._threads import count_threads, run_slices
from pullback.trajectory import differentiate, threads_used
from pullback.trajectory.kernels.stencil import _cpu as stencil_kernels


def counting(counts):
    def kernel(first, last):
        counts[first:last] += 1

    return kernel


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("items", [1, 2, 3, 1000])
def test_every_item_is_worked_on_once(threads, items):
    counts = np.zeros(items)
    run_slices(counting(counts), {}, items, threads)
    assert (counts == 1).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_arguments_go_by_name(threads):
    seen = []

    def kernel(source, target, first, last):
        seen.append((source, target))

    run_slices(kernel, {"target": "written", "source": "read"}, 10, threads)
    assert set(seen) == {("read", "written")}
    with pytest.raises(TypeError, match="sauce"):
        run_slices(kernel, {"target": "written", "sauce": "read"}, 10, threads)


def test_small_work_stays_in_its_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    try:
        assert count_threads(100, 1000) == 1
        assert count_threads(100, 1 << 24) == 8
        assert count_threads(3, 1 << 24) == 3
        assert count_threads(0, 0) == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("batch", "threads"), [(1, 1), (4, 1), (300, 2), (3000, 8)])
def test_how_many_are_used_is_how_many_there_are(batch, threads, monkeypatch):
    taken = []
    monkeypatch.setattr(_threads, "count_threads", lambda *a: taken.append(count_threads(*a)) or 1)
    monkeypatch.setattr(stencil_kernels, "count_threads", _threads.count_threads)
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    try:
        x = torch.zeros(batch, 128, 7)
        differentiate(x, 0.1)
        threads_used(x)
        assert threads_used(x, "reference") == 0
    finally:
        torch.set_num_threads(before)
    assert taken == [threads, threads]


def test_python_threads_at_once():
    wrong = []

    def work():
        for _ in range(50):
            counts = np.zeros(100)
            run_slices(counting(counts), {}, 100, 3)
            if not (counts == 1).all():
                wrong.append(counts)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_one_pool_serves_every_number_of_threads():
    for threads in (2, 5, 3, 7, 4, 6):
        run_slices(counting(np.zeros(100)), {}, 100, threads)
    run_slices(counting(np.zeros(100)), {}, 100, 7)
    names = [t for t in threading.enumerate() if t.name.startswith("pullback_")]
    assert len(names) <= 12  # six at once, and those that were not idle yet when asked again


def test_an_interruption_waits_for_the_other_threads():
    running, release, done = threading.Event(), threading.Event(), []
    main = threading.get_ident()

    def kernel(first, last):
        if threading.get_ident() == main:
            running.wait(10)
            threading.Timer(0.3, release.set).start()
            raise KeyboardInterrupt
        running.set()
        release.wait(10)
        done.append(first)

    with pytest.raises(KeyboardInterrupt):
        run_slices(kernel, {}, 2, 2)
    assert done, "the caller was let go while a thread still wrote"


def test_an_interruption_while_waiting_waits_on(monkeypatch):
    class Once:
        def __init__(self):
            self.asked = 0

        def done(self):
            return self.asked > 2

        def exception(self):
            self.asked += 1
            if self.asked < 3:
                raise KeyboardInterrupt

        def result(self):
            return None

    other = Once()
    with pytest.raises(KeyboardInterrupt):
        _threads._wait([other])
    assert other.done()


def test_an_error_in_a_thread_is_raised():
    def kernel(first, last):
        if first > 0:
            raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        run_slices(kernel, {}, 8, 4)


def test_the_result_does_not_depend_on_the_threads():
    torch.manual_seed(0)
    before, x = torch.get_num_threads(), torch.randn(300, 200, 7, requires_grad=True)
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            motion = differentiate(x, 0.1)
            (gradient,) = torch.autograd.grad(motion.jerk.square().sum(), x)
            results.append((motion.jerk.detach(), gradient))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


# What runs on macOS, Windows, aarch64 and musl runs here: Python's own threads alone.
ALONE = """
import ctypes, os
def refuse(*args, **kwargs):
    raise AssertionError("a library was looked for")
import torch
from pullback.trajectory import differentiate
import pullback.trajectory.kernels.stencil._cpu
ctypes.CDLL = refuse
torch.set_num_threads(2)
x = torch.randn(300, 300, 7)
expected = differentiate(x, 0.1).jerk
if hasattr(os, "fork"):
    child = os.fork()
    if child == 0:
        same = torch.equal(differentiate(x, 0.1).jerk, expected)
        os._exit(0 if same else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"the forked process: {code}"
"""


def test_no_library_of_threads_is_called_and_a_forked_process_has_threads_of_its_own():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ALONE], capture_output=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
