"""Rules that cast to a narrow dtype and back: rounding is noise, what it hides is not."""

import pytest
import torch

import pullback
from pullback.errors import PullbackError

func = torch.func
NARROW = (torch.float32, torch.float16, torch.bfloat16)
WIDE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# What a few casts lose, of the largest entry.
LOST = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
X = torch.tensor([0.3, 0.8, 1.1, 1.4], dtype=torch.float64)


def _in_a_scope(t, dtype):
    if dtype is torch.float32:
        return t
    with torch.autocast("cpu", dtype=dtype):
        return torch.mm(t.reshape(-1, 1), torch.ones(1, 1, dtype=t.dtype)).reshape(t.shape)


CASTS = {
    "to": lambda t, dtype: t.to(dtype),
    "to, by keyword": lambda t, dtype: t.to(dtype=dtype),
    "like another": lambda t, dtype: t.to(torch.empty(0, dtype=dtype)),
    "type_as": lambda t, dtype: t.type_as(torch.empty(0, dtype=dtype)),
    "type": lambda t, dtype: t.type(dtype),
    "a method": lambda t, dtype: getattr(t, NAMES[dtype])(),
    "a copy": lambda t, dtype: torch.empty(t.shape, dtype=dtype).copy_(t),
    "a sum": lambda t, dtype: t.unsqueeze(0).sum(0, dtype=dtype),
    "a scope": _in_a_scope,
}
NAMES = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat16"}


def sine(cast, narrow):
    """sin(x), with everything but the cotangent's product in the narrow dtype."""

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return cast(x, narrow).sin().to(x.dtype)

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            return cast(cast(cotangent, narrow) * cast(x, narrow).cos(), narrow).to(x.dtype)

    return pullback.complete(Sine).apply


def near(got, want, *dtypes):
    torch.testing.assert_close(got.double(), want, rtol=0, atol=max(LOST[it] for it in dtypes))


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("narrow", NARROW, ids=str)
def test_every_transform_is_right_to_the_narrow_precision(narrow, dtype):
    function = sine(CASTS["to"], narrow)
    x = X.to(dtype)
    near(func.grad(lambda x: function(x).sum())(x), X.cos(), dtype, narrow)
    near(func.jvp(function, (x,), (torch.ones_like(x),))[1], X.cos(), dtype, narrow)
    near(func.hessian(lambda x: function(x).sum())(x), torch.diag(-X.sin()), dtype, narrow)
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(function(leaf).sum(), leaf, create_graph=True)
    near(torch.autograd.grad(first.sum(), leaf)[0], -X.sin(), dtype, narrow)
    rows = func.vmap(func.grad(lambda x: function(x).sum()))(x[None])
    near(rows[0], X.cos(), dtype, narrow)


@pytest.mark.parametrize("narrow", NARROW, ids=str)
@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS.keys())
def test_every_way_to_cast(cast, narrow):
    function = sine(cast, narrow)
    for dtype in (torch.float64, torch.float32):
        hessian = func.hessian(lambda x: function(x).sum())(X.to(dtype))
        near(hessian, torch.diag(-X.sin()), dtype, narrow)


HIDDEN = {
    "a number": lambda ctx, h: setattr(ctx, "kept", float(h.sum())),
    "an array": lambda ctx, h: setattr(ctx, "kept", torch.from_numpy(h.float().numpy()).double()),
}


@pytest.mark.parametrize("narrow", NARROW, ids=str)
@pytest.mark.parametrize("hide", HIDDEN.values(), ids=HIDDEN.keys())
def test_what_is_hidden_behind_a_cast_is_refused(hide, narrow):
    class Hides(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = None
            hide(ctx, x.to(narrow))
            return x * x.to(narrow).to(x.dtype)

        @staticmethod
        def backward(ctx, cotangent):
            kept = ctx.kept
            return (cotangent.to(narrow) * kept).to(torch.float64)

    function = pullback.complete(Hides).apply
    with pytest.raises(PullbackError):
        func.hessian(lambda x: function(x).sum())(X)
    leaf = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(function(leaf).sum(), leaf, create_graph=True)
    with pytest.raises(PullbackError):
        torch.autograd.grad(first.sum(), leaf)


NONLINEAR = {
    "a clip": lambda g: g.clamp(-0.5, 0.5),
    "a normalisation": lambda g: g / g.norm(),
    "a dead zone": lambda g: torch.where(g.abs() > 0.1, g, 0 * g),
}


@pytest.mark.parametrize("narrow", NARROW, ids=str)
@pytest.mark.parametrize("rule", NONLINEAR.values(), ids=NONLINEAR.keys())
def test_what_is_not_linear_behind_a_cast_is_refused(rule, narrow):
    class Nonlinear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, cotangent):
            return rule(cotangent.to(narrow)).to(cotangent.dtype)

    function = pullback.complete(Nonlinear).apply
    for dtype in WIDE:
        x = X.to(dtype)
        with pytest.raises(PullbackError, match="not linear"):
            func.jvp(function, (x,), (torch.ones_like(x),))


def test_bits_of_a_narrow_number_are_read_as_they_are():
    class TopBits(torch.autograd.Function):
        """Keeps the upper half of each float32: bfloat16, rounded toward zero."""

        @staticmethod
        def forward(ctx, x):
            return (x.float().view(torch.int32) & -65536).view(torch.float32).to(x.dtype)

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * 1

    function = pullback.complete(TopBits, gradient="surrogate").apply
    for dtype in (torch.float64, torch.float32):
        x = X.to(dtype)
        tangent = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=dtype)
        value, pushed = func.jvp(function, (x,), (tangent,))
        torch.testing.assert_close(value, x, rtol=0.01, atol=0)
        torch.testing.assert_close(pushed, tangent)
        zeros = torch.zeros(4, 4, dtype=dtype)
        torch.testing.assert_close(func.hessian(lambda x: function(x).sum())(x), zeros)
