"""A gradient in a lower precision than its input's is right, though untidy: autograd casts it."""

import pytest
import torch
from tests.fuzzing import examples
from tests.specimens._specimen import normal

from pullback.conformance import Verdict, check
from pullback.conformance.clauses import CLAUSES

pytestmark = pytest.mark.usefixtures("no_edits")

CLAUSES_ASKED = [clause.id for clause in CLAUSES if clause.id not in ("compile", "compositions")]
CASTS = [torch.float32, torch.float16, torch.bfloat16]


def sine(cast, factor=1.0, only=None, second=1.0):
    """Its gradient is cast, and multiplied by a factor; so is the derivative of the gradient."""

    class Slope(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.cos()

        @staticmethod
        def backward(ctx, cotangent):
            return -second * ctx.saved_tensors[0].sin() * cotangent

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if only not in (None, x.dtype):
                raise TypeError("another precision")
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, cotangent):
            return (factor * cotangent * Slope.apply(ctx.saved_tensors[0])).to(cast)

    return Sine


def product(first, second):
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, cotangent):
            x, y = ctx.saved_tensors
            return (cotangent * y).to(first), (cotangent * x).sum(0).to(second)

    return Product


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(examples(1)))
@pytest.mark.parametrize("only", [None, torch.float32])
@pytest.mark.parametrize("cast", CASTS)
def test_a_gradient_that_autograd_casts_is_untidy(cast, only, seed):
    x = normal(6, seed=seed, dtype=only or torch.float64)
    report = check(sine(cast, only=only), x, clauses=CLAUSES_ASKED, seed=seed)
    assert report.ok, report
    assert report["derivative"].verdict is Verdict.HOLDS
    if cast is not only:
        assert report["form"].verdict is Verdict.UNTIDY


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(examples(1)))
@pytest.mark.parametrize("cast", CASTS)
def test_one_of_two_gradients_may_be_cast(cast, seed):
    inputs = normal(3, 4, seed=seed), normal(4, seed=seed + 1)
    for function in (product(cast, torch.float64), product(torch.float64, cast)):
        report = check(function, *inputs, clauses=["derivative", "linear", "double"], seed=seed)
        assert report.ok, report


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(examples(1)))
@pytest.mark.parametrize("cast", CASTS)
def test_a_wrong_gradient_that_is_cast_is_still_found(cast, seed):
    x = normal(6, seed=seed)
    assert (
        check(sine(cast, 1.5), x, clauses="derivative", seed=seed)["derivative"].verdict == "broken"
    )


@pytest.mark.parametrize("seed", range(examples(1)))
@pytest.mark.parametrize("cast", CASTS)
def test_a_gradient_that_is_cast_and_not_linear_is_still_found(cast, seed):
    class Squared(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, cotangent):
            return (cotangent * cotangent.abs()).to(cast)

    report = check(Squared, normal(6, seed=seed), clauses="linear", seed=seed)
    assert report["linear"].verdict == "broken"


@pytest.mark.parametrize("seed", range(examples(1)))
def test_a_wrong_second_derivative_of_a_gradient_that_is_cast_is_still_found(seed):
    report = check(
        sine(torch.float32, second=2.0), normal(6, seed=seed), clauses="double", seed=seed
    )
    assert report["double"].verdict == "broken"


class OfFewDigits(torch.autograd.Function):
    """A kernel of one precision: a matrix product, its gradient times a factor."""

    factor = 1.0

    @staticmethod
    def forward(ctx, a, b):
        if a.dtype not in (torch.bfloat16, torch.float16):
            raise TypeError("half precision only")
        ctx.save_for_backward(a, b)
        return (a.float() @ b.float()).to(a.dtype)

    @staticmethod
    def backward(ctx, cotangent):
        a, b = (t.float() for t in ctx.saved_tensors)
        wide = OfFewDigits.factor * cotangent.float()
        return (wide @ b.mT).to(cotangent.dtype), (a.mT @ wide).to(cotangent.dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("factor", [1.0, 2.0, 1.25, -1.0])
def test_a_function_of_one_coarse_precision_is_held_to_what_autograd_has_of_it(
    dtype, factor, monkeypatch
):
    monkeypatch.setattr(OfFewDigits, "factor", factor)
    inputs = normal(4, 8, dtype=dtype), normal(8, 3, seed=2, dtype=dtype)
    report = check(OfFewDigits, *inputs, clauses="derivative")
    assert report.intent == "gradient exact (inferred)"
    assert report["derivative"].verdict == ("holds" if factor == 1.0 else "broken"), report
    if factor == 2.0:
        assert "Got is 2 x expected" in report["derivative"].detail


class SignOfFewDigits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if x.dtype != torch.bfloat16:
            raise TypeError("bfloat16 only")
        return x.sign()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


def test_an_estimator_of_one_coarse_precision_is_seen_as_one():
    report = check(SignOfFewDigits, normal(5, 7, dtype=torch.bfloat16), clauses="derivative")
    assert report.intent == "gradient surrogate (inferred)"
    assert report.ok
