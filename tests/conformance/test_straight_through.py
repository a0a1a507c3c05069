"""Steps with a gradient of their own are never called broken; smooth Functions with an error are.

The generator draws family, size, precision and seed at random; `make fuzz` draws more, and runs
`python -m tests.conformance.straight_through` over every family.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.straight_through import LARGEST, misjudged
from tests.fuzzing import examples, spread
from tests.specimens._specimen import normal
from tests.specimens.estimators import ESTIMATORS, PRETENDERS

from pullback.conformance import check, check_calls
from pullback.conformance.evidence._steps import Scan, jump

pytestmark = pytest.mark.usefixtures("no_edits")

SIZES = st.one_of(st.sampled_from([1, 2, 3, 64, 257, LARGEST]), st.integers(1, LARGEST))
DTYPES = st.sampled_from([torch.float32, torch.float64])
SEEDS = st.integers(0, 2**20)


@settings(max_examples=examples(6), deadline=None)
@given(name=st.sampled_from(sorted(ESTIMATORS)), size=SIZES, dtype=DTYPES, seed=SEEDS)
def test_a_straight_through_estimator_is_never_called_broken(name, size, dtype, seed):
    told = misjudged(name, size, dtype, seed)
    assert not told, f"{name}, size {size}, {dtype}, seed {seed}\n{told}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", spread(sorted(ESTIMATORS), 2))
def test_each_estimator_at_the_largest_size(name):
    told = misjudged(name, LARGEST, torch.float32, LARGEST)
    assert not told, told


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "size", "dtype", "seed"),
    [
        ("one-hot", 8193, torch.float32, 52),  # two entries compete within rounding
        ("learnt-clip", 5, torch.float64, 21),  # no code changes close by
        ("absolute-maximum", 2, torch.float32, 32),  # the range hides the jumps
        ("absolute-maximum", 2, torch.float64, 49),  # either entry soon sets it
        ("absolute-maximum", 2, torch.float64, 89),
        ("absolute-maximum", 4, torch.float64, 79),
        ("absolute-maximum", 5, torch.float64, 18),
        ("minimum-maximum", 3, torch.float32, 14),  # two of three entries set it
        ("minimum-maximum", 8, torch.float64, 59),
        ("sign-mean", 9, torch.float32, 3),  # slopes beside every jump
        ("sign-mean", 310, torch.float64, 5),
        ("half-rounded", 64, torch.float64, 11),
        ("half-rounded", 10_000, torch.float32, 176),  # all the entries drawn were smooth
        ("learnt-step", 1, torch.float32, 203),  # the one code stands at the end of its range
        ("codebook", 6670, torch.float32, 2),  # float32 codes in a float64 run
        ("codebook", 300, torch.float32, 0),
    ],
)
def test_what_was_called_broken_once_is_not(name, size, dtype, seed):
    told = misjudged(name, size, dtype, seed)
    assert not told, told


@settings(max_examples=examples(6), deadline=None)
@given(name=st.sampled_from(sorted(PRETENDERS)), size=SIZES, dtype=DTYPES, seed=SEEDS)
def test_a_smooth_function_with_an_error_is_always_called_broken(name, size, dtype, seed):
    told = misjudged(name, size, dtype, seed)
    assert not told, f"{name}, size {size}, {dtype}, seed {seed}\n{told}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "size", "dtype", "seed"),
    [
        ("single-steep", 4, torch.float64, 82),  # one float32 number has few bits by chance
        ("single-steep", 7, torch.float64, 39),  # all but saturated, in float32
        ("single-steep", 95, torch.float32, 61),
        ("hard-shrink", 2, torch.float64, 66),  # jumps, and moves where nobody looked
        ("hard-shrink", 2, torch.float32, 72),  # the identity of entries that are large
        ("fraction", 64, torch.float64, 11),  # as many jumps as slopes
        ("lifted", 2, torch.float32, 32),
        ("lifted-rectifier", 9, torch.float32, 3),
        ("half-rounded-wrong", 64, torch.float64, 11),
    ],
)
def test_what_was_missed_once_is_called_broken(name, size, dtype, seed):
    told = misjudged(name, size, dtype, seed)
    assert not told, told


class DoubledRectifier(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * cotangent * (ctx.saved_tensors[0] >= 0)


def test_zeros_that_agree_do_not_settle_what_is_left_out_at_a_kink():
    x = torch.tensor([-3.0, 0.0], dtype=torch.float64, requires_grad=True)
    assert not check(DoubledRectifier, x, clauses="derivative").ok


@pytest.mark.parametrize("height", [0.0, 0.05, 0.5])
def test_a_jump_is_looked_for_where_slopes_do_not_make_up_a_change(height):
    asked = []

    def line(t):
        asked.append(t)
        return torch.tensor([math.sin(t) + height * (t > 0.3)], dtype=torch.float64)

    rounding = torch.full((1,), 2e-15, dtype=torch.float64)
    scan = Scan(line, [0.0, 1.0], torch.zeros(2, 1), rounding, 1e-15, 1.0)
    place = jump(scan, 0, 0.2, 0.45)
    assert place == pytest.approx(0.3) if height else place is None
    assert len(asked) < 10 or height


class Doubled(torch.autograd.Function):
    """Smooth, with a wrong gradient, and slow."""

    calls = 0

    @staticmethod
    def forward(ctx, x, w):
        Doubled.calls += 1
        ctx.save_for_backward(x, w)
        return (x @ w).tanh()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        h = (1 - (x @ w).tanh() ** 2) * g
        return 2 * h @ w.mT, x.mT @ h


@pytest.mark.parametrize(("clauses", "most"), [("linear", 450), ("derivative,sizes,values", 950)])
def test_what_is_smooth_and_wrong_is_called_some_hundred_times(clauses, most):
    Doubled.calls = 0
    report = check(Doubled, normal(5, 4), normal(4, 3), clauses=clauses)
    assert report.gradient == "exact"
    assert 0 < Doubled.calls <= most


class Nearest(torch.autograd.Function):
    """The nearest codes, passed straight through; the gradient of the codes is exact, times."""

    @staticmethod
    def forward(ctx, x, codes, factor):
        index = torch.cdist(x, codes).argmin(1)
        ctx.save_for_backward(index, codes)
        ctx.factor = factor
        return codes[index]

    @staticmethod
    def backward(ctx, g):
        index, codes = ctx.saved_tensors
        return g.clone(), ctx.factor * torch.zeros_like(codes).index_add(0, index, g), None


@pytest.mark.parametrize("factor", [-1.0, 2.0, 0.125])
@pytest.mark.parametrize("seed", range(3))
def test_a_factor_is_seen_where_the_codes_that_are_learnt_move_smoothly(factor, seed):
    x, codes = normal(12, 4, seed=seed), normal(6, 4, seed=seed + 50)
    report = check(Nearest, x, codes, factor, clauses="derivative")
    assert report["derivative"].verdict == "broken"
    assert "args[1]" in report["derivative"].detail
    assert report.gradient == "surrogate"
    assert check(Nearest, x, codes, 1.0, clauses="derivative").ok
    assert check(Nearest, x, codes, factor, gradient="surrogate", clauses="derivative").ok


def test_a_call_that_shows_no_step_hides_no_fault_of_one_that_does():
    x, codes = normal(12, 4), normal(6, 4, seed=50)
    calls = [((x.detach(), codes, -1.0), {}), ((x, codes, -1.0), {})]
    for some in (calls, calls[::-1], calls[:1], calls[1:]):
        finding = check_calls(Nearest, some, clauses="derivative")["derivative"]
        assert finding.verdict == "broken"
        assert "args[1]" in finding.detail
    right = [((*args[:2], 1.0), {}) for args, _ in calls]
    assert check_calls(Nearest, right, clauses="derivative").ok


class ScaledGradient(torch.autograd.Function):
    """It hands on by what it scales, too."""

    @staticmethod
    def forward(ctx, value, scaling):
        ctx.save_for_backward(scaling)
        return value, scaling

    @staticmethod
    def backward(ctx, g, unused):
        (scaling,) = ctx.saved_tensors
        return g * scaling, unused


def test_an_identity_may_give_a_constant_back_as_well():
    report = check(ScaledGradient, normal(5, 4), torch.rand(5, 4), clauses="derivative,linear")
    assert report.ok, report
    assert report.gradient == "surrogate"
