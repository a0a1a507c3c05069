"""`GradFactor` does what torchlogix's does, under every transform."""

import math
from decimal import Decimal
from fractions import Fraction

import pytest
import torch

from pullback.compat.torchlogix import GradFactor
from pullback.errors import ArgumentError


class Original(torch.autograd.Function):
    """What torchlogix 0.2.2 computes."""

    @staticmethod
    def forward(ctx, x, f):
        ctx.f = f
        return x.clone()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.f, None


@pytest.mark.parametrize(
    "factor",
    [2.0, -0.5, 0, 3, torch.tensor(1.5), torch.rand(5)],
    ids=["2", "-0.5", "0", "3", "scalar", "vector"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_same_results(factor, dtype):
    x = torch.randn(3, 5).to(dtype).requires_grad_()
    g = torch.randn(3, 5).to(dtype)
    mine, theirs = GradFactor.apply(x, factor), Original.apply(x, factor)
    assert torch.equal(mine, theirs)
    (got,) = torch.autograd.grad(mine, x, g)
    (expected,) = torch.autograd.grad(theirs, x, g)
    torch.testing.assert_close(got, expected)


def test_nan_is_taken_and_nonsense_is_not():
    x = torch.ones(2, requires_grad=True)
    GradFactor.apply(x, math.nan).sum().backward()
    assert x.grad.isnan().all()
    for factor in (None, "2", torch.ones(3)):
        with pytest.raises(ArgumentError):
            GradFactor.apply(x, factor)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("factor", [Fraction(1, 2), Decimal("0.5")])
def test_numbers_that_torch_does_not_multiply_by(factor):
    x = torch.ones(2, requires_grad=True)
    GradFactor.apply(x, factor).sum().backward()
    assert x.grad.tolist() == [0.5, 0.5]


def test_the_transforms_that_the_original_lacks():
    x = torch.randn(4, 3)

    def loss(t):
        return (GradFactor.apply(t, 3.0) ** 2).sum()

    torch.testing.assert_close(torch.func.grad(loss)(x), 6 * x)
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(x), 6 * x)
    tangent = torch.func.jvp(lambda t: GradFactor.apply(t, 3.0), (x,), (x,))[1]
    torch.testing.assert_close(tangent, 3 * x)
    torch._dynamo.reset()
    leaf = x.clone().requires_grad_()
    torch.compile(loss, backend="aot_eager", fullgraph=True)(leaf).backward()
    torch.testing.assert_close(leaf.grad, 6 * x)


def test_a_tensor_factor_that_is_changed_before_backward_is_noticed():
    x, f = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    y = GradFactor.apply(x, f)
    f.mul_(3.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_whole_number_keeps_its_digits():
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    GradFactor.apply(x, torch.tensor(2**24 + 1)).sum().backward()
    assert x.grad.tolist() == [2**24 + 1] * 2
