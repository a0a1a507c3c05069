"""Steps with a gradient of their own are never called broken; smooth Functions with an error are.

The generator draws family, size, precision and seed at random; `make fuzz` draws more, and runs
`python -m tests.conformance.straight_through` over every family.
"""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.conformance.straight_through import LARGEST, misjudged
from tests.fuzzing import examples, spread
from tests.specimens.estimators import ESTIMATORS, PRETENDERS

SIZES = st.one_of(st.sampled_from([1, 2, 3, 64, 257, LARGEST]), st.integers(1, LARGEST))
DTYPES = st.sampled_from([torch.float32, torch.float64])
SEEDS = st.integers(0, 2**20)


@settings(max_examples=examples(10), deadline=None)
@given(name=st.sampled_from(sorted(ESTIMATORS)), size=SIZES, dtype=DTYPES, seed=SEEDS)
def test_a_straight_through_estimator_is_never_called_broken(name, size, dtype, seed):
    # Open: of two or three entries the one that sets a measured range is half of what moves.
    assume(name != "absolute-maximum" or size > 3)
    told = misjudged(name, size, dtype, seed)
    assert not told, f"{name}, size {size}, {dtype}, seed {seed}\n{told}"


@pytest.mark.parametrize("name", spread(sorted(ESTIMATORS), 2))
def test_each_estimator_at_the_largest_size(name):
    told = misjudged(name, LARGEST, torch.float32, LARGEST)
    assert not told, told


@pytest.mark.parametrize(
    ("name", "size", "dtype", "seed"),
    [
        ("one-hot", 8193, torch.float32, 52),  # two entries compete within rounding
        ("learnt-clip", 5, torch.float64, 21),  # no code changes close by
        ("absolute-maximum", 2, torch.float32, 32),  # the range hides the jumps
        ("codebook", 6670, torch.float32, 2),  # float32 codes in a float64 run
        ("codebook", 300, torch.float32, 0),
    ],
)
def test_what_was_called_broken_once_is_not(name, size, dtype, seed):
    told = misjudged(name, size, dtype, seed)
    assert not told, told


@settings(max_examples=examples(10), deadline=None)
@given(name=st.sampled_from(sorted(PRETENDERS)), size=SIZES, dtype=DTYPES, seed=SEEDS)
def test_a_smooth_function_with_an_error_is_always_called_broken(name, size, dtype, seed):
    told = misjudged(name, size, dtype, seed)
    assert not told, f"{name}, size {size}, {dtype}, seed {seed}\n{told}"
