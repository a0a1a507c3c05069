"""Third-party Functions, completed: equal to the last bit, and every transform besides."""

import sys
import types

import pytest
import torch
from tests.tensor.cases import PublishedCube, Split
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


class Holder:
    def __init__(self, matrix):
        self.parts = (matrix,)


class KeepsAnObject(torch.autograd.Function):
    """An object on the context holds an input, as linear_operator does."""

    @staticmethod
    def forward(ctx, matrix, vector):
        ctx.save_for_backward(vector)
        ctx.holder = Holder(matrix)
        return matrix @ vector

    @staticmethod
    def backward(ctx, g):
        (vector,) = ctx.saved_tensors
        return torch.outer(g, vector), ctx.holder.parts[0].T @ g


class InPlace(torch.autograd.Function):
    """Intermediates are changed in place, as gpytorch's Matern covariance does."""

    @staticmethod
    def forward(ctx, x):
        root = x.sqrt()
        kept = (-root).exp()
        ctx.save_for_backward(root.mul_(2).mul_(kept))
        return (x * x).mul_(3)

    @staticmethod
    def backward(ctx, g):
        (kept,) = ctx.saved_tensors
        result = g.clone()
        result *= kept
        return result


class ReturnsItsInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.save_for_backward(x, strength)
        return x

    @staticmethod
    def backward(ctx, g):
        _, strength = ctx.saved_tensors
        return -strength * g, None


class AppliesAnother(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = PublishedCube.apply(x)
        ctx.save_for_backward(x, y)
        return y * x

    @staticmethod
    def backward(ctx, g):
        _, y = ctx.saved_tensors
        return 4 * y * g


class AsksForGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.wanted = [x.requires_grad, y.requires_grad]
        if x.requires_grad:
            ctx.save_for_backward(y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        assert ctx.wanted == [True, False]
        (y,) = ctx.saved_tensors
        return y * g, None


def positive():
    return torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64)


@pytest.mark.parametrize(
    ("published", "formula"),
    [
        (KeepsAnObject, None),
        (lambda a: lambda x: pullback.complete(AppliesAnother).apply(x), lambda x: x**4),
        (
            lambda a: lambda x: pullback.complete(AsksForGradients).apply(x, a),
            lambda x: x * positive(),
        ),
    ],
)
def test_habits_of_published_code(published, formula):
    x = positive()
    if formula is None:
        matrix = torch.outer(x, x) + torch.eye(3, dtype=x.dtype)

        def used(matrix, x):
            return (pullback.complete(KeepsAnObject).apply(matrix, x) ** 2).sum()

        def plain(matrix, x):
            return ((matrix @ x) ** 2).sum()

        agree(
            torch.func.hessian(used, (0, 1))(matrix, x),
            torch.func.hessian(plain, (0, 1))(matrix, x),
        )
        return
    apply = published(positive())
    for transform in (torch.func.grad, torch.func.hessian):
        agree(
            transform(lambda x: (apply(x) ** 2).sum())(x),
            transform(lambda x: (formula(x) ** 2).sum())(x),
        )


def test_changes_in_place_are_differentiated_out_of_place():
    completed = pullback.complete(InPlace, gradient="surrogate").apply
    x = positive()

    def formula(x):  # the gradient that InPlace.backward computes, of a sum
        return 2 * x.sqrt() * (-x.sqrt()).exp()

    agree(
        torch.func.jacrev(torch.func.grad(lambda x: completed(x).sum()))(x),
        torch.func.jacrev(formula)(x),
    )
    agree(torch.func.jvp(completed, (x,), (x,))[1], formula(x) * x)


def test_a_batch_is_added_into_one_tensor_out_of_place():
    class Lookup(torch.autograd.Function):
        @staticmethod
        def forward(ctx, table, index):
            ctx.save_for_backward(table, index)
            return table.index_select(0, index)

        @staticmethod
        def backward(ctx, cotangent):
            table, index = ctx.saved_tensors
            return torch.zeros_like(table).index_add_(0, index, cotangent), None

    apply = pullback.complete(Lookup).apply
    table, index = positive().reshape(-1, 1), torch.tensor([0, 2, 2])
    for outer in (torch.func.jacfwd, torch.func.jacrev):
        agree(
            outer(torch.func.jacrev(lambda t: (apply(t, index) ** 3).sum()))(table),
            outer(torch.func.jacrev(lambda t: (t[index] ** 3).sum()))(table),
        )


def test_an_input_that_is_returned_and_saved():
    strength = torch.tensor(2.0, dtype=torch.float64)
    completed = pullback.complete(ReturnsItsInput).apply
    x = positive()
    agree(torch.func.grad(lambda x: completed(x, strength).sum())(x), torch.full_like(x, -2))
    assert completed(x, strength).data_ptr() == x.data_ptr()


def test_a_nonlinear_backward_is_found_out():
    class GuidedRelu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.relu()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (x > 0) * (g > 0)

    with pytest.raises(UnsupportedError, match="not linear"):
        torch.func.jvp(pullback.complete(GuidedRelu).apply, (positive(),), (positive(),))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # Dynamo's own doing
def test_a_function_that_takes_a_function_compiles():
    class Through(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, function):
            ctx.save_for_backward(x)
            return function(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g, None

    completed = pullback.complete(Through)
    torch._dynamo.reset()
    x = positive().requires_grad_()
    run = torch.compile(
        lambda x: completed.apply(x, lambda t: t * t), fullgraph=True, backend="aot_eager"
    )
    (g,) = torch.autograd.grad(run(x).sum(), x)
    agree(g, 2 * x.detach())
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(
            torch.func.grad(lambda x: completed.apply(x, lambda t: t * t).sum()),
            fullgraph=True,
            backend="aot_eager",
        )(positive())


class Covariance(torch.autograd.Function):
    """The radial basis covariance of gpytorch: an unsummed gradient, saved in forward."""

    @staticmethod
    def forward(ctx, x, y, lengthscale, distance):
        if any(ctx.needs_input_grad[:2]):
            raise RuntimeError("no gradient with respect to the points")
        squared = distance(x.div(lengthscale), y.div(lengthscale))
        covariance = squared.clone().div_(-2.0).exp_()
        ctx.save_for_backward(squared.mul_(covariance).div_(lengthscale))
        return covariance

    @staticmethod
    def backward(ctx, g):
        (derivative,) = ctx.saved_tensors
        return None, None, g * derivative, None


def test_a_gradient_that_autograd_sums_is_summed_before_residuals_are_added():
    generator = torch.Generator().manual_seed(2)
    x, y = (torch.randn(n, 1, generator=generator, dtype=torch.float64) for n in (6, 5))
    completed = pullback.complete(Covariance).apply

    def distance(a, b):
        return (a - b.mT).square()

    def used(length):
        return completed(x, y, length, distance).square().sum()

    def formula(length):
        return torch.exp(distance(x / length, y / length) / -2).square().sum()

    length = torch.tensor([[0.3]], dtype=torch.float64)
    for outer in (torch.func.jacrev, torch.func.jacfwd):
        for inner in (torch.func.jacrev, torch.func.jacfwd):
            agree(outer(inner(used))(length), outer(inner(formula))(length))
    leaf = length.requires_grad_()
    (g,) = torch.autograd.grad(used(leaf), leaf, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), leaf)
    agree(h, torch.func.hessian(formula)(length.detach()).reshape(1, 1))


class SplitCube(torch.autograd.Function):
    forward = staticmethod(Split.forward)
    setup_context = staticmethod(Split.setup_context)
    backward = staticmethod(Split.backward)


class BatchedCube(SplitCube):
    generate_vmap_rule = True


@pytest.mark.parametrize("inner", [SplitCube, BatchedCube])
@pytest.mark.parametrize("place", ["forward", "backward"])
def test_a_rule_that_applies_a_function_without_all_rules_has_every_derivative(inner, place):
    class Quartic(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return (x * inner.apply(x) if place == "forward" else x**4) / 4

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (inner.apply(x) if place == "backward" else x**3)

    completed = pullback.complete(Quartic).apply
    x = positive()
    for first in (torch.func.jacrev, torch.func.jacfwd):
        for second in (torch.func.jacrev, torch.func.jacfwd):
            agree(second(first(lambda x: completed(x).sum()))(x).diagonal(), 3 * x**2)
    agree(torch.func.vmap(torch.func.grad(lambda x: completed(x).sum()))(x[None])[0], x**3)
