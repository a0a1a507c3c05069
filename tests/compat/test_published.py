"""What the four systems publish: signatures, arity, import paths, and classes to inherit from."""

import importlib
import inspect
from types import SimpleNamespace

import pytest
import torch

from pullback.compat import curobo, unit_scaling
from pullback.compat.torchlogix.functional import GradFactor

SIGNATURES = [
    (GradFactor, ("ctx", "x", "f"), ("ctx", "grad_y")),
    (unit_scaling.ScaleTracker, ("ctx", "t", "scale_tracker"), ("ctx", "t")),
]


@pytest.mark.parametrize(("function", "forward", "backward"), SIGNATURES)
def test_signatures(function, forward, backward):
    assert tuple(inspect.signature(function.forward).parameters) == forward
    assert tuple(inspect.signature(function.backward).parameters) == backward
    assert function.vjp == function.backward
    assert function.setup_context is torch.autograd.Function.setup_context


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("torchlogix.functional", ("GradFactor",)),
        ("unit_scaling.utils", ("ScalePair", "ScaleTracker", "analyse_module")),
        ("unit_scaling.scale", ("scale_bwd", "scale_fwd")),
        ("unit_scaling.formats", ("FPFormat",)),
        ("unit_scaling.analysis", ("plot",)),
        ("unit_scaling.transforms", ("Metrics", "compile", "prune_non_float_tensors")),
        ("unit_scaling.transforms", ("prune_same_scale_tensors", "prune_selected_nodes")),
        ("unit_scaling.transforms", ("simulate_format", "simulate_fp8", "track_scales")),
        (
            "curobo.rollout.dynamics_model.integration_utils",
            tuple(name for name in curobo.__all__ if name != "rollout"),
        ),
    ],
)
def test_import_paths(path, names):
    module = importlib.import_module(f"pullback.compat.{path}")
    for name in names:
        assert name in module.__all__
        assert getattr(module, name).__doc__


def test_rules_called_by_hand():
    ctx = SimpleNamespace()
    x = torch.ones(3)
    assert torch.equal(GradFactor.forward(ctx, x, 2.0), x)
    assert ctx.f == 2.0
    assert GradFactor.backward(ctx, x)[0].tolist() == [2.0, 2.0, 2.0]
    assert GradFactor.vjp(ctx, x)[0].tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("needs", [(), (True,), (True, False), (False, True)])
@pytest.mark.parametrize("f", [2.0, torch.tensor(2.0)], ids=str)
def test_a_grad_factor_called_with_a_context_of_ones_own(needs, f):
    ctx, g = SimpleNamespace(f=f, needs_input_grad=needs), torch.ones(3)
    assert GradFactor.backward(ctx, g)[0].tolist() == [2.0, 2.0, 2.0]


def test_a_step_called_with_a_context_of_ones_own():
    ctx = SimpleNamespace(needs_input_grad=(True,), saved_tensors=None)
    ctx.save_for_backward = lambda *kept: setattr(ctx, "saved_tensors", kept)
    u, start, eye = torch.randn(2, 4, 3), torch.randn(2, 3), torch.eye(4)
    g = (torch.randn(2, 4, 3),) * 4
    curobo.CliqueTensorStep.forward(ctx, u, start, eye[:, :1], eye, eye, eye, eye)
    of_u, *others = curobo.CliqueTensorStep.backward(ctx, *g)
    torch.testing.assert_close(of_u, 4 * g[0])
    assert others == [None] * 6
    zero = torch.zeros(2, 3)
    ctx.saved_tensors = u, start, zero, zero, torch.ones(1)
    of_u, *others = curobo.CliqueTensorStepKernel.backward(ctx, *g)
    assert of_u.shape == u.shape
    assert others == [None] * 9


def test_a_grad_factor_with_another_backward():
    class Halved(GradFactor):
        @staticmethod
        def backward(ctx, grad_y):
            whole, of_f = GradFactor.backward(ctx, grad_y)
            return whole / 2, of_f

    class Kept(GradFactor):
        @staticmethod
        def forward(ctx, x, f):
            ctx.seen = f
            return GradFactor.forward(ctx, x, f + 1)

        @staticmethod
        def backward(ctx, grad_y):
            return grad_y * (ctx.f + 10 * ctx.seen), None

    x = torch.ones(2, requires_grad=True)
    for function, expected in ((Halved, 1.5), (Kept, 34.0)):
        assert torch.autograd.grad(function.apply(x, 3.0).sum(), x)[0].tolist() == [expected] * 2
        tangent = torch.func.jvp(
            lambda t, f=function: f.apply(t, 3.0), (x.detach(),), (x.detach(),)
        )
        assert tangent[1].tolist() == [expected] * 2
        batch = torch.vmap(torch.func.grad(lambda t, f=function: f.apply(t, 3.0).sum()))
        assert batch(torch.ones(3, 2)).tolist() == [[expected] * 2] * 3


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.int8], ids=str)
@pytest.mark.parametrize("f", [2.0, True, 3, torch.tensor(2), torch.tensor([True, False])], ids=str)
def test_what_has_no_gradient_passes(dtype, f):
    x = torch.tensor([0, 1]).to(dtype)
    got = GradFactor.apply(x, f)
    assert got.dtype == dtype
    assert torch.equal(got, x)
    assert not got.requires_grad


@pytest.mark.parametrize(
    "f",
    [True, False, torch.tensor([True, False, True]), torch.tensor([1, 0, 5], dtype=torch.uint8)],
)
def test_factors_that_are_no_floats(f):
    x = torch.randn(3, requires_grad=True)
    g = torch.randn(3)
    assert torch.equal(torch.autograd.grad(GradFactor.apply(x, f), x, g)[0], g * f)
