"""The Functions of number formats keep every clause, or refuse it by name."""

from functools import partial

import pytest
import torch

from pullback import check
from pullback.conformance.clauses import CLAUSES
from pullback.gradients import dtype_gradient
from pullback.tracking.formats import E5M2, simulate_format
from pullback.tracking.formats._cases import cases
from pullback.tracking.formats._simulate import RoundGradientFunction

# torch itself loads its decompositions through the deprecated torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def normal():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 5, generator=generator, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_every_clause(case):
    inputs = case.inputs(torch.Generator().manual_seed(0))
    report = check(case.function, *inputs, gradient=case.gradient, seed=0)
    assert report.ok, str(report)
    assert not [finding for finding in report.findings if finding.verdict == "lacking"]


def round_stochastically(x, noise):
    return RoundGradientFunction.apply(x, noise, E5M2, "saturate")


# Their second order is straight-through on purpose; the derivative of rounding is zero.
BUT_DOUBLE = [clause.id for clause in CLAUSES if clause.id != "double"]


@pytest.mark.parametrize(
    ("function", "more"),
    [
        (partial(simulate_format, backward=E5M2), ()),
        (round_stochastically, (torch.linspace(0, 0.99, 15).double().reshape(3, 5),)),
        (partial(dtype_gradient, dtype=torch.bfloat16), ()),
    ],
    ids=["nearest", "stochastic", "dtype"],
)
def test_rounded_gradients(function, more):
    report = check(function, normal(), *more, gradient="nonlinear", clauses=BUT_DOUBLE, seed=0)
    assert report.ok, str(report)
    lacking = {finding.clause for finding in report.findings if finding.verdict == "lacking"}
    assert lacking <= {"forward", "transforms"}


def test_the_second_order_of_a_rounded_gradient_is_straight_through():
    x = normal()
    g = torch.full((3, 5), 0.3, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(simulate_format(x, backward=E5M2), x, g, create_graph=True)
    assert first.unique().tolist() == [0.3125]
    (second,) = torch.autograd.grad(first.sum(), g)
    assert torch.equal(second, torch.ones_like(second))
