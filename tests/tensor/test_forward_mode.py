"""Forward mode with dual numbers, and under torch.func.jvp."""

import pytest
import torch
from tests.tensor.helpers import SEED, agree, every_row
from torch.autograd import forward_ad

import pullback
from pullback.errors import UnsupportedError


def tangents(args):
    generator = torch.Generator().manual_seed(SEED + 1)
    return tuple(torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in args)


def dual(function, args, directions):
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, v) for x, v in zip(args, directions, strict=True)]
        outputs = function(*duals)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return [tuple(forward_ad.unpack_dual(output)) for output in outputs]


@every_row
def test_dual_numbers(row):
    args = row.arguments(SEED)
    agree(dual(row.function, args, tangents(args)), dual(row.formula, args, tangents(args)))


@every_row
def test_func_jvp_with_some_tangents_only(row):
    x, *rest = row.arguments(SEED)
    (v,) = tangents((x,))
    agree(
        torch.func.jvp(lambda x: row.function(x, *rest), (x,), (v,)),
        torch.func.jvp(lambda x: row.formula(x, *rest), (x,), (v,)),
    )


@every_row
def test_reverse_over_forward(row):
    args = [x.requires_grad_() for x in row.arguments(SEED)]

    def gradient(function):
        pairs = dual(function, args, tangents(args))
        total = sum((tangent * tangent).sum() for _, tangent in pairs)
        if total.grad_fn is None:
            return [torch.zeros_like(x) for x in args]
        return torch.autograd.grad(total, args, materialize_grads=True)

    agree(gradient(row.function), gradient(row.formula))


@every_row
def test_no_graph_is_built_without_grad_mode(row):
    args = [x.requires_grad_() for x in row.arguments(SEED)]
    with torch.no_grad():
        pairs = dual(row.function, args, tangents(args))
    assert all(not tangent.requires_grad for _, tangent in pairs)


class Clipped(pullback.Function):
    gradient = "nonlinear"

    @staticmethod
    def forward(x):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.clamp(-1, 1)


class ClippedUndeclared(Clipped):
    gradient = "exact"


class ThroughNumpy(pullback.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(2 * x.detach().numpy() * cotangent.detach().numpy())


class IntoEmpty(pullback.Function):
    """Stands for a kernel: the values arrive without torch operations."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        gradient = torch.empty_like(cotangent)
        memoryview(gradient.detach().numpy()).cast("B")[:] = memoryview(
            (cotangent.detach() * 2).numpy()
        ).cast("B")
        return gradient


class NoTangent(pullback.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 2

    @staticmethod
    def jvp(ctx, tangent):
        return None


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (Clipped, "declared nonlinear"),
        (ClippedUndeclared, "not linear"),
        (ThroughNumpy, "ThroughNumpy cannot be derived"),
        (IntoEmpty, "leaves torch"),
    ],
)
def test_what_cannot_be_derived_is_refused_by_name(function, named):
    x = torch.full((4,), 3.0, dtype=torch.float64)
    with pytest.raises(pullback.errors.UnsupportedError, match=named) as caught:
        torch.func.jvp(function.apply, (x,), (torch.arange(4.0, dtype=x.dtype),))
    assert function.__name__ in str(caught.value)
    assert caught.value.mend


def test_a_missing_tangent_is_not_taken_for_zero():
    x = torch.ones(2)
    with pytest.raises(pullback.errors.DefinitionError, match="returned None"):
        torch.func.jvp(NoTangent.apply, (x,), (x,))


class SavedInAnotherOrder(pullback.Function):
    @staticmethod
    def forward(x, y):
        return x.exp() * y.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y = inputs
        ctx.exponential = x.exp()  # a residual, so that forward runs again
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(y, x)

    @staticmethod
    def backward(ctx, cotangent):
        _, y = ctx.saved_tensors
        return cotangent * ctx.exponential * y.sin(), cotangent * ctx.exponential * y.cos()

    @staticmethod
    def jvp(ctx, x, y):
        angle, _ = ctx.saved_tensors
        return ctx.exponential * (angle.sin() * x + angle.cos() * y)


def test_a_tangent_that_is_differentiated_reads_what_was_saved_for_forward():
    def slope(function):
        def tangent(x):
            return torch.func.jvp(lambda z: function(z, z + 1), (x,), (torch.ones_like(x),))[1]

        return torch.func.grad(tangent)(torch.tensor(0.3, dtype=torch.float64))

    torch.testing.assert_close(
        slope(SavedInAnotherOrder.apply), slope(lambda x, y: x.exp() * y.sin())
    )


class Unsummed(torch.autograd.Function):
    """x + y, whose backward leaves it to autograd to sum over what was broadcast."""

    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, g):
        return g, g


def test_a_gradient_that_autograd_sums_is_transposed():
    x, y = torch.ones(3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
    agree(
        torch.func.jvp(pullback.complete(Unsummed).apply, (x, y), (x, 2 * y))[1],
        torch.full((2, 3), 3.0, dtype=torch.float64),
    )


class PrivateLeaf(torch.autograd.Function):
    """The reciprocal, whose slope is a derivative of its own in forward."""

    @staticmethod
    def forward(ctx, x):
        y = 1 / x
        with torch.enable_grad():
            leaf = (y * y).detach().requires_grad_()
            (slope,) = torch.autograd.grad((leaf * leaf / 2).sum(), leaf)
        ctx.save_for_backward(slope.detach())
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (slope,) = ctx.saved_tensors
        return -slope * cotangent


def test_what_rules_raise_when_a_tangent_is_looked_at_again_is_told_by_name():
    x = torch.tensor([1.125, 0.75, 0.5], dtype=torch.bfloat16)
    call = pullback.complete(PrivateLeaf).apply

    def loss(x):
        y = call(x)
        return (y + y * y / 2).sum()

    with pytest.raises(UnsupportedError, match="PrivateLeaf"):
        torch.func.jacrev(torch.func.jacfwd(loss))(x)
