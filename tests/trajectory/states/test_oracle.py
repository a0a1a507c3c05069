"""A few of the random programs of `oracle`; `make fuzz` tries more, from new seeds."""

import pytest
from tests.fuzzing import examples

oracle = pytest.importorskip("tests.trajectory.states.oracle", reason="clarabel is not installed")


@pytest.mark.breadth
def test_random_programs_equal_those_of_another_solver(request):
    first = (
        0 if examples(1) == 1 else int(request.config.getoption("--hypothesis-seed") or 0) % 2**31
    )
    for seed in range(first, first + examples(4)):
        counts, wrong, _ = oracle.compare(seed)
        assert counts["compared"]
        assert wrong == []


@pytest.mark.parametrize("seed", [2002011, 2006045])
def test_rows_that_nearly_depend_on_one_another_leave_the_cost_least(seed):
    _, wrong, most = oracle.compare(seed)
    assert wrong == []
    assert most <= 1e-6


@pytest.mark.parametrize("seed", [341284, 780557])
def test_where_a_smaller_gap_is_not_reached_the_motion_of_the_larger_one_is_kept(seed):
    _, wrong, most = oracle.compare(seed)
    assert wrong == []
    assert most <= 1e-6
