"""The Functions of number formats keep every clause, or refuse it by name."""

import pytest
import torch
from tests.fuzzing import clauses_of

from pullback import check
from pullback.gradients._nonlinear import DtypeGradientFunction
from pullback.tracking.formats import E5M2, simulate_format
from pullback.tracking.formats._cases import cases
from pullback.tracking.formats._round import RoundGradientFunction, RoundValueFunction

# torch itself loads its decompositions through the deprecated torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def normal():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 5, generator=generator, dtype=torch.float64, requires_grad=True)


CASES = list(cases())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_clause(case):
    inputs = case.inputs(torch.Generator().manual_seed(0))
    clauses = clauses_of(CASES.index(case))
    report = check(case.function, *inputs, gradient=case.gradient, seed=0, clauses=clauses)
    assert report.ok, str(report)
    lacking = {finding.clause for finding in report.findings if finding.verdict == "lacking"}
    assert lacking <= set(case.refuses), str(report)


# Rounding at second order is straight-through: with the cotangent nothing is to be compared, and
# with the input it still is.
class WeighedByMean(torch.autograd.Function):
    """A product whose own backward forgets one factor: a wrong second derivative."""

    @staticmethod
    def forward(ctx, rounded, x):
        ctx.save_for_backward(x)
        return rounded * x.mean()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * x.mean(), torch.zeros_like(x)


class Value(RoundValueFunction):
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, cotangent):
        return WeighedByMean.apply(cotangent, *ctx.saved_tensors), None, None, None


class Gradient(RoundGradientFunction):
    @staticmethod
    def setup_context(ctx, inputs, output):
        RoundGradientFunction.setup_context(ctx, inputs, output)
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, cotangent):
        rounded = RoundGradientFunction.shape(cotangent, *ctx.kept)
        return WeighedByMean.apply(rounded, *ctx.saved_tensors), None, None, None


class Cast(DtypeGradientFunction):
    @staticmethod
    def setup_context(ctx, inputs, output):
        DtypeGradientFunction.setup_context(ctx, inputs, output)
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, cotangent):
        rounded = DtypeGradientFunction.shape(cotangent, *ctx.kept)
        return WeighedByMean.apply(rounded, *ctx.saved_tensors), None


@pytest.mark.parametrize(
    ("function", "rest"),
    [
        (Value, (None, E5M2, "saturate")),
        (Gradient, (None, E5M2, "saturate")),
        (Cast, (torch.bfloat16,)),
    ],
)
def test_a_wrong_second_derivative_of_a_rounding_function_is_found(function, rest):
    report = check(function, normal(), *rest, clauses="double")
    assert report["double"].verdict == "broken", str(report)
    assert report["double"].input == "args[0]"


def test_the_second_order_of_a_rounded_gradient_is_straight_through():
    x = normal()
    g = torch.full((3, 5), 0.3, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(simulate_format(x, backward=E5M2), x, g, create_graph=True)
    assert first.unique().tolist() == [0.3125]
    (second,) = torch.autograd.grad(first.sum(), g)
    assert torch.equal(second, torch.ones_like(second))
