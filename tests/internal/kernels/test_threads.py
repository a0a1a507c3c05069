"""Jobs on torch's team of threads, in a pool without it, and in a process that was forked."""

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from tests.internal.kernels.test_cpu import COUNT

from pullback.internal.kernels import _threads
from pullback.trajectory import differentiate

MUCH = 1 << 24


@pytest.fixture(params=["team", "pool"])
def workers(request, monkeypatch):
    if request.param == "pool":
        monkeypatch.setattr(_threads, "_team", None)
    elif _threads._team is None:
        pytest.skip("torch runs on another library than libgomp here")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_every_item_is_worked_on_once(workers, threads):
    torch.set_num_threads(threads)
    for items in (1, 2, 3, 1000):
        counts = np.zeros(items)
        _threads.run_job(COUNT, items, _threads.count_threads(items, MUCH), [counts.ctypes.data])
        assert (counts == 1).all()


def test_python_threads_at_once(workers):
    wrong = []

    def work():
        for _ in range(50):
            counts = np.zeros(100)
            number = _threads.count_threads(100, MUCH)
            _threads.run_job(COUNT, 100, number, [counts.ctypes.data])
            if not (counts == 1).all():
                wrong.append(counts)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_result_does_not_depend_on_the_threads(workers):
    torch.manual_seed(0)
    x = torch.randn(300, 200, 7, requires_grad=True)
    results = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        motion = differentiate(x, 0.1)
        (gradient,) = torch.autograd.grad(motion.jerk.square().sum(), x)
        results.append((motion.velocity.detach(), motion.jerk.detach(), gradient))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_little_work_stays_in_one_slice():
    assert _threads.count_threads(1000, 1000) == 1
    assert _threads.count_slices(1000, 1) == 1
    assert _threads.count_slices(0, _threads.count_threads(0, MUCH)) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_process_has_threads_of_its_own():
    # torch's team does not survive a fork: whoever waits for it waits forever.
    program = """
import os, torch
torch.set_num_threads(2)
from pullback.trajectory import differentiate
x = torch.arange(300 * 1000 * 7.0).reshape(300, 1000, 7).sin()
torch.sin(x)
here = differentiate(x, 0.1).jerk
child = os.fork()
if child == 0:
    there = differentiate(x, 0.1).jerk
    os._exit(0 if (here.numpy() == there.numpy()).all() else 3)
_, status = os.waitpid(child, 0)
raise SystemExit(os.waitstatus_to_exitcode(status))
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    assert subprocess.run(command, timeout=120, check=False).returncode == 0
