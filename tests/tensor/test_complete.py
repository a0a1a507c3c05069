"""Third-party Functions, completed: equal to the last bit, and every transform besides."""

import sys
import types

import pytest
import torch
from tests.tensor.cases import PublishedCube
from tests.tensor.helpers import agree

import pullback
from pullback.errors import ArgumentError, UnsupportedError


def x():
    return torch.randn(7, generator=torch.Generator().manual_seed(5), requires_grad=True)


def test_first_order_is_equal_to_the_last_bit_and_the_original_is_unchanged():
    before = dict(vars(PublishedCube))
    completed = pullback.complete(PublishedCube)
    first, second = x(), x()
    a, b = PublishedCube.apply(first), completed.apply(second)
    assert torch.equal(a, b)
    (g,) = torch.autograd.grad(a.sin().sum(), first)
    (h,) = torch.autograd.grad(b.sin().sum(), second)
    assert torch.equal(g, h)
    assert dict(vars(PublishedCube)) == before
    assert issubclass(completed, PublishedCube)
    assert completed.__name__ == PublishedCube.__name__
    assert pullback.complete(PublishedCube) is completed
    assert pullback.complete(completed) is completed


def test_what_torch_alone_answers_wrongly_is_right():
    value = torch.tensor(2.0, dtype=torch.float64)
    completed = pullback.complete(PublishedCube).apply
    assert torch.func.grad(torch.func.grad(completed))(value) == 12
    assert torch.func.jacfwd(torch.func.jacfwd(completed))(value) == 12


class ThroughNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(2 * x.numpy() * g.numpy())


def test_what_leaves_torch_is_refused_by_name_where_it_matters():
    completed = pullback.complete(ThroughNumpy)
    value = torch.ones(2, dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(completed.apply(value).sum(), value, create_graph=True)
    assert g.tolist() == [2, 2]
    with pytest.raises(UnsupportedError, match="ThroughNumpy cannot be derived"):
        torch.autograd.grad(g.sum(), value)
    with pytest.raises(UnsupportedError, match="ThroughNumpy cannot be derived"):
        torch.func.jvp(completed.apply, (value.detach(),), (value.detach(),))


def test_a_function_with_its_own_apply_is_refused():
    class Own(PublishedCube):
        @classmethod
        def apply(cls, x):
            return super().apply(x) + 1

    with pytest.raises(UnsupportedError, match="its own apply"):
        pullback.complete(Own)


def test_a_declared_intent_is_kept():
    assert pullback.complete(PublishedCube, gradient="surrogate").gradient == "surrogate"
    assert pullback.complete(PublishedCube).gradient is None


@pytest.fixture
def package(monkeypatch):
    module = types.ModuleType("published")

    class Cube(PublishedCube):
        pass

    Cube.__module__ = "published"
    module.Cube = Cube
    module.cube = Cube.apply
    monkeypatch.setitem(sys.modules, "published", module)
    return module


def test_completed_works_while_it_is_active_and_no_longer(package):
    value = torch.tensor(2.0, dtype=torch.float64)
    bound = package.cube
    with pullback.completed("published") as functions:
        assert [f.__name__ for f in functions] == ["Cube"]
        for apply in (package.Cube.apply, package.cube):
            assert torch.func.hessian(apply)(value) == 12
    assert package.cube is bound
    assert "apply" not in vars(package.Cube)
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.hessian(package.cube)(value)


def test_completed_restores_after_an_error(package):
    with pytest.raises(KeyError), pullback.completed(package):
        raise KeyError
    assert "apply" not in vars(package.Cube)


def test_completed_needs_a_module_that_exists():
    with pytest.raises(ArgumentError, match="no_such_package"):
        pullback.completed("no_such_package").__enter__()


def test_autograd_inside_a_backward_still_works():
    class Checkpointed(torch.autograd.Function):
        """As reversible networks do: backward runs a part of the network again."""

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin() * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                y = x.detach().requires_grad_()
                (result,) = torch.autograd.grad(y.sin() * y, y, g)
            return result

    value = x()
    out = pullback.complete(Checkpointed).apply(value)
    agree(
        torch.autograd.grad(out.sum(), value)[0].double(),
        torch.autograd.grad((value.sin() * value).sum(), value)[0].double(),
    )
