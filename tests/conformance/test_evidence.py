"""Finite differences: the error estimate holds, and kinks are told from smooth points."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples

from pullback.conformance.evidence._evidence import Estimate, compare, slopes
from pullback.conformance.evidence._sides import look
from pullback.conformance.inputs._vectors import inner

pytestmark = pytest.mark.usefixtures("no_edits")

ONE = torch.ones(1, dtype=torch.float64)


def at(function, x):
    return lambda t: function(torch.tensor([x + t], dtype=torch.float64))


@pytest.mark.parametrize(
    ("function", "x", "derivative"),
    [
        (torch.exp, 0.3, math.exp(0.3)),
        (torch.sin, 2.0, math.cos(2.0)),
        (lambda x: (1000 * x).sin(), 0.01, 1000 * math.cos(10)),
        (torch.log, 0.02, 50.0),
        (lambda x: x**9, 1.5, 9 * 1.5**8),
        (torch.round, 0.3, 0.0),
        (lambda x: x * 0 + 5.0, 1.0, 0.0),
    ],
)
def test_smooth_functions(function, x, derivative):
    found = slopes(at(function, x)).weigh(ONE)
    assert abs(found.value - derivative) <= 1e-7 * max(1.0, abs(derivative))
    assert abs(found.value - derivative) <= 100 * found.error + 1e-12
    assert compare(found, derivative, abs(derivative)) == "match"


@pytest.mark.parametrize("function", [torch.relu, torch.abs, lambda x: x.clamp(min=0) * 3 + x])
def test_a_kink_is_unclear_not_wrong(function):
    found = slopes(at(function, 0.0)).weigh(ONE)
    assert not found.smooth
    assert compare(found, 7.0, 7.0) == "unclear"


def test_a_jump_and_what_is_not_finite_are_unclear():
    jump = slopes(at(torch.sign, 0.0)).weigh(ONE)
    assert compare(jump, 1.0, 1.0) == "unclear"
    undefined = slopes(at(torch.log, 0.0)).weigh(ONE)
    assert compare(undefined, 1.0, 1.0) == "unclear"


@settings(max_examples=examples(60), deadline=None)
@given(x=st.floats(0.2, 3.0), power=st.integers(1, 6), wrong=st.floats(0.001, 0.5))
def test_a_wrong_derivative_is_a_mismatch(x, power, wrong):
    found = slopes(at(lambda v: v**power, x)).weigh(ONE)
    true = power * x ** (power - 1)
    assert compare(found, true, true) == "match"
    assert compare(found, true * (1 + wrong), true) == "mismatch"


def test_inner_products_are_real_for_complex_tensors():
    a, b = torch.tensor([1 + 2j]), torch.tensor([3 - 1j])
    assert inner(a, b) == (1 - 2j) * (3 - 1j) == 0 or inner(a, b) == ((1 - 2j) * (3 - 1j)).real
    assert inner(torch.ones(0), torch.ones(0)) == 0.0


def test_an_infinite_derivative_agrees_with_nothing():
    estimate = Estimate(1.0, 1e-12, 1.0, smooth=True)
    for value in (math.inf, math.nan):
        assert compare(estimate, value, math.inf) == "mismatch"


def test_one_sided_slopes_are_within_their_error_and_roots_have_none():
    """Of 2,000 entries with a kink each side is told; an error is never more than is said."""
    drawn = torch.Generator().manual_seed(0)
    base, up, down, bend = torch.randn(4, 2000, generator=drawn, dtype=torch.float64)
    power = 0.1 + 0.8 * torch.rand(2000, generator=drawn, dtype=torch.float64)

    def kinked(t):
        return base + (up if t > 0 else down) * t + bend * torch.tensor(t).double().sin().square()

    for side, slope in ((1.0, up), (-1.0, down)):
        found = look(kinked, side, 2.0**-6)
        assert found.told.all()
        assert ((found.slope - slope).abs() <= found.error).all()
        root = look(lambda t: base + abs(t) ** power, side, 2.0**-6)
        assert not root.told.any()


@pytest.mark.parametrize("grain", [0.0, 1e-7])
def test_what_stands_still_within_its_own_rounding_may_have_a_slope(grain):
    dtype = torch.float64 if grain else torch.float32

    def line(t):
        return torch.tensor([1.0 + 1e-9 * t], dtype=torch.float32).to(dtype)

    found = look(line, 1.0, 2.0**-6, grain=grain)
    assert found.slope.item() == 0
    assert not found.told or found.error.item() > 1e-9


@pytest.mark.parametrize(("bend", "asked"), [(0.0, 7), (1e-9, 17)])
def test_what_is_affine_is_asked_for_at_three_steps(bend, asked):
    called = []

    def line(t):
        called.append(t)
        return torch.tensor([1.0 + 3.0 * t + bend * t * t, 0.0], dtype=torch.float64)

    found = slopes(line)
    assert len(called) == asked
    assert found.settled.all()
    assert found.value.tolist() == pytest.approx([3.0, 0.0])
    assert (found.error < 1e-9).all()
