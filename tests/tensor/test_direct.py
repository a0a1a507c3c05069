"""Functions whose rules torch runs itself where no transform is at work: nothing else differs."""

import pytest
import torch
from torch.autograd import forward_ad

import pullback
from pullback.errors import ArgumentTypeError, DefinitionError
from pullback.tensor.engine import _engine


class Scale(pullback.Function):
    gradient = "surrogate"
    calls = 0

    @staticmethod
    def forward(x, weight, power):
        return x * 1, (weight**power).sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, ctx.power = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, g, h):
        x, weight = ctx.saved_tensors
        along_x = g * x.cos() if ctx.needs_input_grad[0] else None
        along_weight = None
        if ctx.needs_input_grad[1]:
            along_weight = h * ctx.power * weight ** (ctx.power - 1)
        return along_x, along_weight, None


class DirectScale(Scale):
    _direct = True


@pytest.fixture
def engine_runs(monkeypatch):
    """How often the general engine was entered."""
    entered = []
    real = _engine.Call

    def counting(*args, **kwargs):
        entered.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(_engine, "Call", counting)
    return entered


def inputs():
    torch.manual_seed(0)
    return torch.randn(3, requires_grad=True), torch.rand(2, requires_grad=True)


def run(function, x, weight):
    y, z = function.apply(x, weight, 3)
    return y.sin().sum() * z


def test_the_engine_is_not_entered(engine_runs):
    x, weight = inputs()
    first = torch.autograd.grad(run(DirectScale, x, weight), (x, weight))
    with torch.no_grad():
        assert not DirectScale.apply(x, weight, 3)[0].requires_grad
    assert engine_runs == []
    second = torch.autograd.grad(run(Scale, x, weight), (x, weight))
    assert engine_runs == []
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_subclass_promises_for_itself():
    class Doubled(DirectScale):
        @staticmethod
        def forward(x, weight, power):
            return x.mul_(2), weight.sum()

    with pytest.raises(DefinitionError, match="forward of Doubled"):
        Doubled.apply(torch.ones(2), torch.ones(2), 1)


def test_second_order_and_missing_cotangents():
    results = []
    for function in (Scale, DirectScale):
        x, weight = inputs()
        first = torch.autograd.grad(run(function, x, weight), (x, weight), create_graph=True)
        second = torch.autograd.grad(first[0].square().sum() + first[1].sum(), (x, weight))
        (alone,) = torch.autograd.grad(function.apply(x, weight, 3)[0].sum(), x)
        results.append((*first, *second, alone))
    torch.testing.assert_close(*results)


def test_nodes_carry_its_name():
    x, weight = inputs()
    assert DirectScale.apply(x, weight, 2)[0].grad_fn.name() == "DirectScaleBackward"


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "dual", "autocast"])
def test_everything_else_goes_through_the_engine(engine_runs, transform):
    x, weight = (tensor.detach() for tensor in inputs())
    results = []
    for function in (Scale, DirectScale):
        engine_runs.clear()
        if transform == "grad":
            result = torch.func.grad(lambda x, f=function: run(f, x, weight))(x)
        elif transform == "vmap":
            call = torch.func.vmap(lambda x, w, f=function: f.apply(x, w, 2)[0], in_dims=(0, None))
            result = call(x, weight)
        elif transform == "jvp":
            call = lambda x, f=function: run(f, x, weight)  # noqa: E731  # one line beside its kin
            result = torch.func.jvp(call, (x,), (torch.ones_like(x),))[1]
        elif transform == "dual":
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(x, torch.ones_like(x))
                result = forward_ad.unpack_dual(run(function, dual, weight)).tangent
        else:

            class Apart(function):
                autocast = "disable"
                _direct = function is DirectScale

            with torch.autocast("cpu", dtype=torch.bfloat16):
                result = Apart.apply(x, weight, 2)[1]
        assert len(engine_runs) == 1
        results.append(result)
    torch.testing.assert_close(*results)


def test_a_tensor_that_outlived_its_transform():
    kept = []
    torch.func.grad(lambda x: (kept.append(x), x.sum())[1])(torch.arange(3.0))
    _, weight = inputs()
    y, _ = DirectScale.apply(kept[0], weight, 2)
    assert torch.equal(y, torch.arange(3.0))


def test_a_wrong_number_of_arguments():
    with pytest.raises(ArgumentTypeError, match=r"DirectScale.apply got arguments"):
        DirectScale.apply(*inputs())


def test_a_gradient_taken_in_batches(engine_runs):
    results = []
    for function in (Scale, DirectScale):
        x, weight = inputs()
        y, _ = function.apply(x, weight, 2)
        (rows,) = torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)
        results.append(rows)
    torch.testing.assert_close(*results)


class Turn(pullback.Function):
    """Its backward applies a Function to the cotangent, as a linear map that is its own inverse."""

    _direct = True

    @staticmethod
    def forward(x, adjoint):
        return -x.flip(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.adjoint = inputs[1]

    @staticmethod
    def backward(ctx, cotangent):
        return Turn.apply(cotangent, not ctx.adjoint), None


@pytest.mark.parametrize("outputs", [1, 2])
def test_gradients_taken_in_batches_are_differentiated(outputs):
    def apply(x):
        if outputs == 1:
            return Turn.apply(x, False)
        return DirectScale.apply(Turn.apply(x, False), x.detach(), 2)[0]

    def rows_of(x, *, at_once):
        y = apply(x).square()
        if at_once:
            return torch.autograd.grad(
                y, x, torch.eye(3), is_grads_batched=True, create_graph=True
            )[0]
        single = [torch.autograd.grad(y, x, row, create_graph=True)[0] for row in torch.eye(3)]
        return torch.stack(single)

    found = []
    for at_once in (True, False):
        x = torch.arange(1.0, 4.0, requires_grad=True)
        # A sum with what is differentiated: a lost history would be a wrong number, and no error.
        total = rows_of(x, at_once=at_once).square().sum() + x.sum()
        found.append(torch.autograd.grad(total, x)[0])
    torch.testing.assert_close(*found)


def test_torch_runs_the_rules_themselves():
    x, weight = inputs()
    node = DirectScale.apply(x, weight, 2)[0].grad_fn
    assert node._forward_cls.forward is DirectScale.forward
    assert "__pullback__" not in vars(node)


def test_backward_is_apart_from_autocast():
    seen = []

    class Apart(DirectScale):
        autocast = "disable"
        _direct = True

        @staticmethod
        def backward(ctx, g, h):
            seen.append(torch.is_autocast_enabled("cpu"))
            return DirectScale.backward(ctx, g, h)

    x, weight = inputs()
    total = run(Apart, x, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total.backward()
    assert seen == [False]
