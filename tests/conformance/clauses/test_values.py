"""The clause `values`: wrong at a special value, for every kind of fault there."""

import math

import pytest
import torch
from tests.conformance.clauses.torch_functions import TORCH_FUNCTIONS
from tests.fuzzing import spread
from tests.specimens._specimen import normal
from tests.specimens.wrong.values import PLACES, fault_at

from pullback.conformance import check
from pullback.conformance._special import one_sided

# What torch 2.13 itself gets wrong, found by the clause; each is true by hand.
FAULTS_OF_TORCH = {
    "hypot": "NaN at (0, 0), where both one-sided slopes are finite",
    "xlogy": "NaN for y at (0, 0), where it is 0 for every y",
    "norm.3": "NaN in float16 at 4096, where the gradient is below 1",
    "matrix_exp": "infinite in bfloat16 near zero, where the gradient is that of the sum",
}
if torch.__version__ >= "2.15":
    FAULTS_OF_TORCH["scaled_dot_product_attention"] = "off by 1e-9 where softmax saturates, float64"


@pytest.mark.parametrize("fault", ["zero", "nan", "doubled", "inf"])
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_at_a_special_value_is_found(place, fault):
    report = check(fault_at(place, fault), normal(3, 4), clauses=["derivative", "values"])
    assert report["derivative"].verdict == "holds"
    assert report["values"].verdict == "broken", f"seed {report.seed}\n{report}"


RIGHT = [name for name in TORCH_FUNCTIONS if name not in FAULTS_OF_TORCH]


@pytest.mark.parametrize("name", spread(RIGHT, 5))
def test_torchs_own_functions_are_not_flagged(name):
    function, inputs = TORCH_FUNCTIONS[name]
    report = check(function, *inputs(), clauses=["sizes", "values"])
    assert report.ok, f"{name}, seed {report.seed}\n{report}"


@pytest.mark.parametrize("outer", [torch.sin, lambda x: (torch.sin(x) / 3).exp()])
@pytest.mark.parametrize("seed", [0, 2, 5])
def test_what_swings_within_the_steps_of_differences_is_not_flagged(outer, seed):
    """At large numbers the product has one slope, and the sine of a square another, unseen."""
    report = check(
        lambda x, y: outer(x.square()) + x * y, normal(1, seed=seed), normal(1, seed=seed + 1),
        seed=seed, clauses="values",
    )  # fmt: skip
    assert report["values"].verdict == "holds", f"seed {seed}\n{report}"


@pytest.mark.parametrize("name", FAULTS_OF_TORCH)
def test_what_torch_gets_wrong_is_said(name):
    function, inputs = TORCH_FUNCTIONS[name]
    assert check(function, *inputs(), clauses="values")["values"].verdict == "broken"


@pytest.mark.parametrize(
    ("function", "side", "slope"),
    [
        (abs, 1.0, 1.0),
        (abs, -1.0, -1.0),
        (lambda t: max(t, 0.0), -1.0, 0.0),
        (lambda t: t * t + 3 * t, 1.0, 3.0),
        (lambda t: abs(t) ** 1.5, 1.0, 0.0),
        (lambda t: abs(t) ** 0.5, 1.0, None),
        (lambda t: t * math.log(abs(t)) if t else 0.0, 1.0, None),
        (lambda t: 1.0 if t > 0 else 0.0, 1.0, None),
        (lambda t: t * abs(t) / (abs(t) + 1e-12), 1.0, None),
    ],
)
def test_one_sided_differences_tell_a_limit_from_none(function, side, slope):
    found = one_sided(function, side, 0.1, at_zero=True)
    assert found is None if slope is None else abs(found - slope) < 1e-6


def test_what_is_wrong_everywhere_is_left_to_derivative():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, cotangent):
            return 2 * ctx.saved_tensors[0].cos() * cotangent

    assert check(Wrong, normal(4), clauses="values")["values"].verdict == "skipped"
