"""Code is read in any number of threads."""

import gc
import sys
import threading

import pytest

from pullback.internal import _syntax
from pullback.internal._syntax import parse


class Collected:
    """Gives another thread its turn when it is collected, in the midst of a tree."""

    def __init__(self):
        self.cycle = self

    def __del__(self):
        for _ in range(50):
            pass


@pytest.fixture
def eager_threads():
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50, 2, 2)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("eager_threads")
def test_trees_are_made_in_several_threads():
    with open(_syntax.__file__, encoding="utf-8") as file:
        text = 8 * file.read()
    failed = []

    def work():
        for _ in range(8):
            Collected()
            try:
                parse(text)
            except SystemError as error:
                failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
