"""The tape and torch are asked the same, and answer the same."""

import math

import pytest
from tests.tape.backends import BACKENDS
from tests.tape.table import CASES


def same(a, b):
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_the_table_is_long_enough():
    assert len(CASES) >= 60


def test_the_comparison_can_fail():
    assert not same([1.0], [1.0 + 1e-9])
    assert not same(True, 1.0)
    assert not same((1.0,), (1.0, 2.0))


@pytest.mark.parametrize("name", CASES)
def test_torch_and_the_tape_agree(name):
    theirs, ours = (CASES[name](BACKENDS[backend]) for backend in ("torch", "tape"))
    assert same(theirs, ours), f"torch: {theirs}\ntape:  {ours}"
