"""Arguments that a program makes of one another are moved together before a Function is accused."""

import pytest
import torch
from tests.specimens._specimen import normal

from pullback.conformance import check

pytestmark = pytest.mark.usefixtures("no_edits")


def total(map_, slope, *, share=1.0):
    """y(x, z) = sin(x) z; backward knows z = map_(x), and answers for both where x stands."""

    class Total(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, z):
            ctx.save_for_backward(x, z)
            return x.sin() * z

        @staticmethod
        def backward(ctx, g):
            x, z = ctx.saved_tensors
            return share * g * (x.cos() * z + x.sin() * slope(x)), torch.zeros_like(z)

    x = normal(5).detach().abs() + 0.5
    return Total, x, map_(x)


MADE = {
    "equal to": (torch.clone, torch.ones_like),
    "the reciprocal of": (torch.reciprocal, lambda x: -1 / x**2),
    "the exponential of": (torch.exp, torch.exp),
}


@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_a_gradient_for_all_that_is_made_of_an_argument_is_no_wrong_one(name, differentiated):
    function, x, z = total(*MADE[name])
    args = x.requires_grad_(), z.detach().requires_grad_(differentiated)
    found = check(function, *args, clauses=("derivative", "values"))
    assert found["derivative"].verdict == "lacking"
    assert f"args[1] is {name} args[0]" in found["derivative"].detail
    assert found.ok


@pytest.mark.parametrize("name", MADE)
def test_a_wrong_gradient_is_one_though_another_argument_is_made_of_it(name):
    function, x, z = total(*MADE[name], share=2.0)
    args = x.requires_grad_(), z.detach().requires_grad_()
    assert check(function, *args, clauses="derivative")["derivative"].verdict == "broken"


def test_one_that_is_made_of_no_other_is_accused_as_before():
    function, x, _ = total(*MADE["equal to"])
    args = x.requires_grad_(), normal(5, seed=3)
    assert check(function, *args, clauses="derivative")["derivative"].verdict == "broken"


class TotalOfInverse(torch.autograd.Function):
    """(a b, inverse of a), with the whole gradient for ``a``."""

    @staticmethod
    def forward(ctx, a, inverse, b):
        solved = inverse @ b
        ctx.save_for_backward(inverse, solved)
        return solved + a.sum()

    @staticmethod
    def backward(ctx, g):
        inverse, solved = ctx.saved_tensors
        right = inverse.mT @ g
        return g.sum() - right @ solved.mT, None, right


def test_a_matrix_moves_its_inverse():
    a = (normal(3, 3) + 3 * torch.eye(3, dtype=torch.float64)).detach()
    inverse = torch.linalg.inv(a)
    args = a.requires_grad_(), inverse, normal(3, 2)
    found = check(TotalOfInverse, *args, clauses="derivative")["derivative"]
    assert found.verdict == "lacking"
    assert "args[1] is the inverse of args[0]" in found.detail


class ReadsItsReciprocal(torch.autograd.Function):
    """sin(x) z, whose backward takes 1 / z for x."""

    @staticmethod
    def forward(ctx, x, z):
        ctx.save_for_backward(z)
        return x.sin() * z

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        return g * z.reciprocal().cos() * z, g * z.reciprocal().sin()


def test_special_values_in_one_of_two_that_are_made_of_each_other_accuse_nobody():
    x = normal(5).detach().abs() + 0.5
    args = x.requires_grad_(), x.detach().reciprocal().requires_grad_()
    report = check(ReadsItsReciprocal, *args, clauses=("derivative", "values"))
    assert report["derivative"].verdict == "holds"
    assert report["values"].verdict != "broken"
