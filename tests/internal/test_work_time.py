"""What counts as work of a process: computing and sleeping; not waiting for others to let it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from pullback.internal import _work_time
from pullback.internal._work_time import WorkTime

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all time counts")

SPIN = "while True: pass"
SLEEP = "import time\nwhile True: time.sleep(0.01)"
THREADS = """
import threading, hashlib
def work():
    while True: hashlib.sha256(bytes(10**7))
for _ in range(4): threading.Thread(target=work).start()
"""


@pytest.fixture
def started(monkeypatch):
    monkeypatch.setattr(_work_time, "_EVERY", 0.05)
    processes = []

    def start(program):
        command = [sys.executable, "-c", program]
        processes.append(subprocess.Popen(command, start_new_session=True))
        return processes[-1].pid

    yield start
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)  # its children too
        process.wait()


@pytest.fixture
def watched(started):
    def watch(program, seconds, meanwhile=lambda pid: None):
        pid = started(program)
        work = WorkTime(pid)
        meanwhile(pid)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.02)
            assert work.seconds >= 0.0
        return work.seconds

    return watch


def enough(work, seconds):
    """Whether so much is counted, however long that takes on a busy machine."""
    end = time.monotonic() + 30
    while work.seconds < seconds and time.monotonic() < end:
        time.sleep(0.02)
    return work.seconds >= seconds


def test_computing_counts_and_so_does_what_a_child_computes(started):
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPIN!r}])"
    for program in (SPIN, child):
        began = time.monotonic()
        work = WorkTime(started(program))
        assert enough(work, 0.15)
        assert work.seconds < time.monotonic() - began + 0.05


def test_sleeping_counts_as_a_lock_that_nobody_opens_does(started):
    assert enough(WorkTime(started(SLEEP)), 0.15)


def test_many_threads_count_no_faster_than_the_clock(watched):
    began = time.monotonic()
    assert watched(THREADS, 0.5) < time.monotonic() - began + 0.05


def test_being_stopped_costs_nothing(watched):
    def stop(pid):
        time.sleep(0.1)
        os.kill(pid, signal.SIGSTOP)

    assert watched(SPIN, 0.8, stop) < 0.4
    assert watched(SLEEP, 0.8, stop) < 0.4


def test_what_is_never_continued_ends_all_the_same(watched, monkeypatch):
    monkeypatch.setattr(_work_time, "_UNMOVED", 0.3)
    assert watched(SPIN, 0.6, lambda pid: os.kill(pid, signal.SIGSTOP)) == float("inf")


def test_a_gap_in_which_this_process_was_stopped_itself_is_no_sleep_of_the_other(
    watched, monkeypatch
):
    monkeypatch.setattr(_work_time, "_LATE", 0.1)
    assert watched(SLEEP, 0.1, lambda pid: time.sleep(0.5)) < 0.35
