"""A law: what pullback.Function makes of a random smooth formula is always ok."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples
from tests.specimens._specimen import normal

from pullback import Function
from pullback.conformance import check
from pullback.conformance.clauses import CLAUSES

pytestmark = pytest.mark.usefixtures("no_edits")

CHEAP = [clause.id for clause in CLAUSES if clause.id not in ("compile", "cuda-graph")]

UNARY = {
    "sin": torch.sin,
    "tanh": torch.tanh,
    # Bounded: where it overflows, autograd's own rules give 0 * inf, and are told so by `values`.
    "exp": lambda x: x.sin().exp(),
    "square": torch.square,
    "logistic": torch.sigmoid,
    "softplus": torch.nn.functional.softplus,
    "rational": lambda x: x / (1 + x * x),
    "root": lambda x: (1 + x * x).sqrt(),
}
BINARY = {"add": torch.add, "multiply": torch.mul, "subtract": torch.sub}


@st.composite
def formulas(draw, depth=3):
    """A smooth formula of ``x`` and ``y``, as nested tuples."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(["x", "y"]))
    if draw(st.booleans()):
        return draw(st.sampled_from(sorted(UNARY))), draw(formulas(depth - 1))
    left, right = draw(formulas(depth - 1)), draw(formulas(depth - 1))
    return draw(st.sampled_from(sorted(BINARY))), left, right


def value_of(formula, x, y):
    if isinstance(formula, str):
        return {"x": x, "y": y}[formula]
    operation, *parts = formula
    values = [value_of(part, x, y) for part in parts]
    return {**UNARY, **BINARY}[operation](*values)


def function_of(formula, *, reduced):
    """A Function of the formula, whose backward is written with autograd's own rules."""

    def whole(x, y):
        result = value_of(("add", formula, ("multiply", "x", "y")), x, y)
        return result.sum(-1) if reduced else result

    class Formula(Function):
        @staticmethod
        def forward(x, y):
            return whole(x, y)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, cotangent):
            x, y = ctx.saved_tensors
            return torch.func.vjp(whole, x, y)[1](cotangent)

    return Formula


@settings(max_examples=examples(2), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    formula=formulas(), reduced=st.booleans(), shape=st.sampled_from([(1,), (3,), (2, 3)]),
    seed=st.integers(0, 2**16),
)  # fmt: skip
def test_a_function_of_a_random_smooth_formula_is_ok(formula, reduced, shape, seed):
    function = function_of(formula, reduced=reduced)
    inputs = normal(*shape, seed=seed), normal(*shape, seed=seed + 1)
    report = check(function, *inputs, seed=seed, clauses=CHEAP)
    assert report.ok, f"{formula}, seed {seed}\n{report}"
    assert report["derivative"].verdict.value == "holds"


@settings(max_examples=examples(5), deadline=None, suppress_health_check=list(HealthCheck))
@given(formula=formulas(), factor=st.floats(1.001, 3.0), seed=st.integers(0, 2**16))
def test_a_factor_on_one_gradient_is_always_found(formula, factor, seed):
    right = function_of(formula, reduced=False)

    class Wrong(right):
        @staticmethod
        def backward(ctx, cotangent):
            first, second = right.backward(ctx, cotangent)
            return first * factor, second

    report = check(Wrong, normal(3, seed=seed), normal(3, seed=seed + 1), seed=seed,
                   clauses=["derivative"])  # fmt: skip
    x, y = normal(3, seed=seed).detach(), normal(3, seed=seed + 1).detach()
    slope = torch.func.grad(lambda v: right.apply(v, y).sum())(x)
    if slope.abs().max() > 1e-3:  # a gradient of zero has no factor
        assert report["derivative"].verdict.value == "broken", f"{formula}, seed {seed}\n{report}"
        assert report["derivative"].input == "args[0]"
