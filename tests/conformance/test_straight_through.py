"""Steps with a gradient of their own are never called broken; smooth Functions with an error are.

The generator draws family, size, precision and seed at random; `make fuzz` draws more.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples
from tests.specimens.estimators import ESTIMATORS, PRETENDERS

from pullback.conformance import Verdict, check

SIZES = [1, 2, 3, 10, 64, 257, 1000, 10_000]
CLAUSES = ["derivative", "linear", "non-differentiable", "structure"]


def judged(families, name, size, dtype, seed, clauses=CLAUSES):
    function, inputs = families[name](size, dtype, seed)
    report = check(function, *inputs, seed=seed, clauses=clauses)
    return report, f"{name}, size {size}, {dtype}, seed {seed}\n{report}"


def is_judgeable(name, size, dtype, seed):
    """Whether a pretender moves at all at its point: where it is saturated no error shows."""
    function, inputs = PRETENDERS[name](size, dtype, seed)
    if not hasattr(function, "rule"):
        return bool(inputs[0].round().ne(0).any())
    x = inputs[0].detach().double().requires_grad_()
    y = function.rule(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    return bool((slope * x).abs().max() > 1e-3 * y.abs().max())


@settings(max_examples=examples(30), deadline=None)
@given(
    name=st.sampled_from(sorted(ESTIMATORS)), size=st.sampled_from(SIZES),
    dtype=st.sampled_from([torch.float32, torch.float64]), seed=st.integers(0, 2**20),
)  # fmt: skip
def test_a_straight_through_estimator_is_never_called_broken(name, size, dtype, seed):
    report, told = judged(ESTIMATORS, name, size, dtype, seed)
    assert report.ok, told


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@pytest.mark.parametrize("size", [1, 10_000])
def test_each_estimator_at_the_ends_of_the_sizes(name, size):
    report, told = judged(ESTIMATORS, name, size, torch.float32, size)
    assert report.ok, told


@settings(max_examples=examples(30), deadline=None)
@given(
    name=st.sampled_from(sorted(PRETENDERS)), size=st.sampled_from(SIZES),
    dtype=st.sampled_from([torch.float32, torch.float64]), seed=st.integers(0, 2**20),
)  # fmt: skip
def test_a_smooth_function_with_an_error_is_always_called_broken(name, size, dtype, seed):
    if not is_judgeable(name, size, dtype, seed):
        return
    report, told = judged(PRETENDERS, name, size, dtype, seed, ["derivative"])
    assert report["derivative"].verdict is Verdict.BROKEN, told
