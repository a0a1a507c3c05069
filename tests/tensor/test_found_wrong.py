"""Answers that a search found silently wrong, each reduced to a few lines: right or refused."""

import copy
import io
import random

import numpy as np
import pytest
import torch
from tests.tensor.both import both
from tests.tensor.helpers import agree
from torch._dynamo.exc import Unsupported
from torch.autograd import forward_ad

import pullback
from pullback.errors import PullbackError

func = torch.func
X = torch.tensor([0.6, 1.1, 1.4], dtype=torch.float64)
ROWS = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64)


def right_or_refused(ask, function, formula):
    want = ask(formula)
    try:
        got = ask(function)
    except PullbackError:
        return
    agree(got, want)


class Total(torch.autograd.Function):
    """x * sum(x), with the sum kept as a number: item by item, each item has its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.total = x.sum().item()
        return x * x.sum()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return ctx.total * g + (g * x).sum()


class Listed(torch.autograd.Function):
    """x ** 2, with its derivative kept as a list of numbers."""

    @staticmethod
    def forward(ctx, x):
        ctx.derivative = (2 * x).tolist()
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g * torch.tensor(ctx.derivative, dtype=g.dtype)


BATCHED = {
    "vmap of grad": lambda f: func.vmap(func.grad(lambda x: f(x).sum()))(ROWS),
    "grad of vmap": lambda f: func.grad(lambda x: func.vmap(f)(x).sum())(ROWS),
    "over columns": lambda f: func.vmap(func.grad(lambda x: f(x).sum()), in_dims=1)(ROWS),
    "vmap of jvp": lambda f: func.vmap(lambda x: func.jvp(f, (x,), (x,))[1])(ROWS),
    "vmap of vjp": lambda f: func.vmap(lambda x: func.vjp(f, x)[1](x)[0])(ROWS),
}


@pytest.mark.parametrize("ask", BATCHED.values(), ids=BATCHED)
@pytest.mark.parametrize("batching", ["auto", "loop"])
def test_a_number_on_the_context_item_by_item(ask, batching):
    total = pullback.complete(Total, batching=batching).apply
    right_or_refused(ask, total, lambda x: x * x.sum())
    listed = pullback.complete(Listed, batching=batching).apply
    right_or_refused(ask, listed, lambda x: x * x)


class Paired(torch.autograd.Function):
    """x * sum(x), with the sum kept in a tuple beside the tensor."""

    @staticmethod
    def forward(ctx, x):
        ctx.pair = (x, x.sum().item())
        return x * x.sum()

    @staticmethod
    def backward(ctx, g):
        x, total = ctx.pair
        return total * g + (g * x).sum()


class Swapped(torch.autograd.Function):
    """x ** 2, which saves its two tensors in an order that depends on the values."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(*((x, 2 * x) if x.sum().item() > 8 else (2 * x, x)))
        return x * x

    @staticmethod
    def backward(ctx, g):
        first, second = ctx.saved_tensors
        return g * torch.where(first.abs() > second.abs(), first, second)


class Chosen(torch.autograd.Function):
    """x ** 2, or half of it, by the values: what is saved first tells which."""

    @staticmethod
    def forward(ctx, x):
        positive = x.sum().item() > 8
        ctx.save_for_backward(*((2 * x, x) if positive else (x, 2 * x)))
        return x * x if positive else x * x / 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


FORMULAS = {
    Paired: lambda x: x * x.sum(),
    Swapped: lambda x: x * x,
    Chosen: lambda x: x * x * torch.where(x.sum() > 8, 1.0, 0.5),
}


@pytest.mark.parametrize("ask", BATCHED.values(), ids=BATCHED)
@pytest.mark.parametrize("batching", ["auto", "loop"])
@pytest.mark.parametrize("kind", FORMULAS)
def test_another_place_for_each_item(kind, ask, batching):
    right_or_refused(ask, pullback.complete(kind, batching=batching).apply, FORMULAS[kind])


def test_the_name_of_a_custom_operator_says_nothing():
    @torch.library.custom_op("pullback_found::sign", mutates_args=())
    def sign(x: torch.Tensor) -> torch.Tensor:
        return 3 * x

    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(torch.ops.pullback_found.sign(x * x))
            return x**3

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    def second():
        x = X.clone().requires_grad_()
        (g,) = torch.autograd.grad(pullback.complete(Kept).apply(x).sum(), x, create_graph=True)
        return torch.autograd.grad(g.sum(), x)

    with pytest.raises(PullbackError):
        second()


def test_an_operator_named_after_an_error_has_the_derivative_that_is_registered():
    @torch.library.custom_op("pullback_found::squared_Error", mutates_args=())
    def squared_error(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x - y) ** 2

    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return 2 * cotangent * (x - y), 2 * cotangent * (y - x)

    squared_error.register_autograd(
        backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
    )

    class Cubic(pullback.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return (x - 1) ** 3

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            return 3 * cotangent * squared_error(x, torch.ones_like(x))

    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(Cubic.apply(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(second, 6 * (X - 1))


def test_what_one_level_alone_differentiates_is_a_constant_to_the_others():
    kept = []

    class BelowAutograd(pullback.Function):
        gradient = "exact"

        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            with torch._C._AutoDispatchBelowAutograd():
                kept.append(y * 1)
            return y

        @staticmethod
        def backward(ctx, cotangent):
            return kept[-1] * cotangent

    def ask(function):
        def loss(x):
            return (function(x) ** 2).sum() / 2

        return torch.autograd.functional.hvp(loss, X, torch.ones_like(X))[1]

    right_or_refused(ask, BelowAutograd.apply, torch.exp)


def below_autograd(t):
    with torch._C._AutoDispatchBelowAutograd():
        return t * 1


def variable_of_data(t):
    return torch.autograd.Variable(t.data).detach()


def copied(t):
    return copy.deepcopy(t.detach())


def tangent_of_a_gradient(f):
    with forward_ad.dual_level():
        x = forward_ad.make_dual(X.clone().requires_grad_(), ROWS[:, 0].clone())
        (gradient,) = torch.autograd.grad((f(x) ** 2).sum(), x)
        return forward_ad.unpack_dual(gradient).tangent


@pytest.mark.parametrize("passage", [below_autograd, variable_of_data, copied])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_tangent_that_torch_loses_below_a_function_that_it_shows(passage, where):
    class Exponential(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.kept = passage(y) if where == "forward" else y
            return y

        @staticmethod
        def backward(ctx, cotangent):
            kept = ctx.kept if where == "forward" else passage(ctx.kept)
            return kept * cotangent

    right_or_refused(tangent_of_a_gradient, pullback.complete(Exponential).apply, torch.exp)


def unseen(t):
    with torch._C.DisableTorchFunction():
        return t * 1


@torch.jit.script
def scripted(t):
    return t * 1


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize("passage", [unseen, scripted])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_backward_that_hides_that_it_is_not_linear(passage, dtype):
    class Normalising(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            return 2 * x * cotangent / passage((cotangent * cotangent).sum() + 1)

    x = X.to(dtype)
    with pytest.raises(PullbackError, match="linear"):
        func.jvp(pullback.complete(Normalising).apply, (x,), (x,))


class Stopped(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 1 / x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return -(y * y).detach() * cotangent


def test_what_backward_declares_to_have_no_derivative_is_not_given_one():
    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            out = t * 1
            ctx.mark_non_differentiable(out)
            return out

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent

    class Reciprocal(pullback.Function):
        @staticmethod
        def forward(ctx, x):
            y = 1 / x
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, cotangent):
            _, y = ctx.saved_tensors
            return -Marked.apply(y * y) * cotangent

    def ask(function):
        rows = ROWS.clone().requires_grad_()
        first = func.vmap(func.grad(lambda row: (function(row) ** 2).sum()))(rows)
        return torch.autograd.grad(first.sum(), rows)

    right_or_refused(ask, Reciprocal.apply, Stopped.apply)


def bisected(x):
    """y with y ** 3 + y = x, of whose steps autograd sees no derivative."""
    low, high = torch.full_like(x, -4.0), torch.full_like(x, 4.0)
    for _ in range(48):
        y = (low + high) / 2
        below = y**3 + y < x
        low, high = torch.where(below, y, low), torch.where(below, high, y)
    return y


@pytest.mark.parametrize("leave", [torch.Tensor.detach, lambda y: y.new_tensor(y.tolist())])
def test_a_root_that_forward_found_by_steps_is_not_taken_for_a_constant(leave):
    class Root(pullback.Function):
        @staticmethod
        def forward(ctx, x):
            y = bisected(x)
            ctx.y = y.detach()
            return y

        @staticmethod
        def backward(ctx, cotangent):
            y = leave(ctx.y).to(cotangent)
            return cotangent / (1 + 3 * y**2)

    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(Root.apply(x).sum(), x, create_graph=True)
    y = bisected(X)
    agree(first, 1 / (1 + 3 * y**2))
    with pytest.raises(PullbackError):
        torch.autograd.grad((first**2).sum(), x)


WITHIN = {
    "grad": func.grad(lambda s: (s * s / 2).sum()),
    "grad of grad": lambda t: func.grad(func.grad(lambda s: s**3 / 6))(t[0]).expand(3) + 0 * t,
    "jacrev": func.jacrev(lambda s: (s * s / 2).sum()),
    "vmap": func.vmap(lambda s: s * 1.0),
    "vmap of grad": func.vmap(func.grad(lambda s: s * s / 2)),
    "functionalize": func.functionalize(lambda s: s * 1.0),
    "a parameter": lambda t: torch.nn.Parameter(t) * 1.0,
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kept", ["saved", "in a list"])
@pytest.mark.parametrize("within", WITHIN.values(), ids=WITHIN)
def test_what_is_made_of_a_root_within_a_transform_is_not_a_constant(within, kept):
    outside = []

    class Root(pullback.Function):
        @staticmethod
        def forward(ctx, x):
            y = bisected(x)
            ctx.save_for_backward(*([y * 1] if kept == "saved" else []))
            outside.append(y * 1)
            return y

        @staticmethod
        def backward(ctx, cotangent):
            (y,) = ctx.saved_tensors or outside[-1:]
            return cotangent / (1 + 3 * within(y) ** 2)

    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(Root.apply(x).sum(), x, create_graph=True)
    with pytest.raises(PullbackError):
        torch.autograd.grad((first**2).sum(), x)
    with pytest.raises(PullbackError):
        func.jvp(lambda x: func.jvp(Root.apply, (x,), (X,))[1], (X,), (X,))


def twice(function):
    x = X.clone().requires_grad_()
    y = function(x)  # the cotangent depends on it, so that its node runs once more
    (first,) = torch.autograd.grad((y * y).sum() / 2, x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)


def jacrev_of_grad(function, x=X):
    def loss(x):
        y = function(x)
        return (y * y).sum() / 2

    return torch.func.jacrev(torch.func.grad(loss))(x)


def vmap_of_jacrev_of_grad(function):
    return torch.func.vmap(lambda x: jacrev_of_grad(function, x))(torch.stack([X, X + 0.5]))


@pytest.mark.parametrize("write", [lambda a, b: a.copy_(b), lambda a, b: a.add_(1).mul_(b)])
@pytest.mark.parametrize("ask", [twice, jacrev_of_grad, vmap_of_jacrev_of_grad])
def test_what_forward_writes_when_it_runs_again_is_written_where_it_was_kept(write, ask):
    kept = []

    class Cubed(pullback.Function):
        @staticmethod
        def forward(ctx, x):
            slope = torch.zeros_like(x)
            write(slope, 3 * x * x)
            kept[:] = [slope]
            return x**3

        @staticmethod
        def backward(ctx, cotangent):
            return kept[0] * cotangent

    right_or_refused(ask, Cubed.apply, lambda x: x**3)


@pytest.mark.parametrize("second", [func.hessian, lambda f: func.jacfwd(func.jacrev(f))])
def test_a_view_that_is_written_fills_the_tensor_that_it_is_of(second):
    class HalfSquare(pullback.Function):
        @staticmethod
        def forward(ctx, x):
            slope = torch.zeros_like(x)
            slope.view(-1).copy_(x)
            ctx.slope = slope.detach()
            return x * x / 2

        @staticmethod
        def backward(ctx, cotangent):
            return ctx.slope * cotangent

    right_or_refused(
        lambda f: second(lambda x: (f(x) ** 2).sum())(X), HalfSquare.apply, lambda x: x * x / 2
    )


class Straight(torch.autograd.Function):
    """The cube, with the backward of the identity."""

    @staticmethod
    def forward(ctx, x):
        return x**3

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


def test_a_private_derivative_of_another_functions_result():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = Straight.apply(x)
            ctx.y = y.detach()
            ctx.save_for_backward(x)
            return y

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                u = ctx.y.detach().requires_grad_()
                (y,) = torch.autograd.grad((u * u / 2).sum(), u)
            return 3 * y / x * cotangent

    def ask(function):
        first = func.grad(lambda x: function(x).sum())
        return func.grad(lambda x: first(x).sum())(X)

    right_or_refused(ask, pullback.complete(Cube).apply, lambda x: x**3)


class StoppedByNoGrad(torch.autograd.Function):
    """exp, whose backward computes its slope without gradients: the author's stop-gradient."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        with torch.no_grad():
            slope = y * 1
        return slope * cotangent


def forward_over_reverse(function):
    return func.jvp(func.jacrev(function), (X,), (X,))[1]


def forward_over_forward(function):
    return func.jvp(lambda x: func.jvp(function, (x,), (X,))[1], (X,), (X,))[1]


def dual_cotangent(function):
    x = X.clone().requires_grad_()
    with torch.enable_grad():
        y = function(x)
    with forward_ad.dual_level():
        (gradient,) = torch.autograd.grad(y, x, forward_ad.make_dual(y.detach(), X))
        return forward_ad.unpack_dual(gradient).tangent


def as_compiled(function):
    compiled = torch.compile(
        func.hessian(lambda x: function(x).sum()), fullgraph=True, backend="eager"
    )
    return compiled(X)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize(
    "ask",
    [forward_over_reverse, forward_over_forward, dual_cotangent, as_compiled],
    ids=lambda ask: ask.__name__,
)
def test_a_stop_gradient_is_heeded_where_forward_mode_runs_backward(ask, grad):
    applied = pullback.complete(StoppedByNoGrad).apply
    with (
        torch.set_grad_enabled(grad),
        pytest.raises((PullbackError, Unsupported), match="without gradients"),
    ):
        ask(applied)


def test_forward_over_reverse_without_gradients_leaves_no_history():
    x = X.clone().requires_grad_()
    with torch.no_grad():
        tangent = func.jvp(func.jacrev(pullback.complete(Straight).apply), (x,), (X,))[1]
    assert not tangent.requires_grad


def test_what_is_kept_under_the_identity_of_an_item():
    kept = {}

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.key = id(x)
            kept[ctx.key] = torch.tensor((x * x).tolist(), dtype=x.dtype)
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            return (kept[ctx.key] + 2 * x * x) * cotangent

    applied = pullback.complete(Cube, gradient="exact").apply
    for ask in BATCHED.values():
        right_or_refused(ask, applied, lambda x: x**3)


def of_func_grad(t):
    return func.grad(lambda s: (s * s / 2).sum())(t.detach())


class ByAnotherFunction(torch.autograd.Function):
    """The cube, with a slope that a transform computes of what another Function has given."""

    @staticmethod
    def forward(ctx, x):
        y = Straight.apply(x)
        ctx.save_for_backward(x, of_func_grad(y))
        return y

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return 3 * y / x * cotangent


class Normalised(torch.autograd.Function):
    """x ** 2, whose backward divides by the size of its cotangent, which a transform computes."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x * cotangent / of_func_grad((cotangent**2).sum() + 1)


def test_what_a_transform_within_a_rule_hides():
    def ask(function):
        return func.jvp(func.grad(lambda x: (function(x) ** 2).sum()), (X,), (X,))[1]

    right_or_refused(ask, pullback.complete(ByAnotherFunction).apply, lambda x: x**3)
    for pushed in (func.jacfwd, lambda f: func.jacrev(func.jacfwd(f)), func.hessian):
        with pytest.raises(PullbackError):
            pushed(lambda x: (pullback.complete(Normalised).apply(x) ** 2).sum())(X)


class MadeAVariable(torch.autograd.Function):
    """The cube; what a part of its slope is made into shares the memory, and has no history."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.square = x * x
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return (torch.autograd.Variable(ctx.square) + 2 * x * x) * cotangent


@pytest.mark.parametrize("second", [func.hessian, lambda f: func.jacrev(func.jacrev(f))])
def test_a_wrapper_that_shares_what_it_wraps(second):
    right_or_refused(
        lambda f: second(lambda x: (f(x) ** 2).sum())(X),
        pullback.complete(MadeAVariable, gradient="exact").apply,
        lambda x: x**3,
    )


class Marked(torch.autograd.Function):
    """A copy that has no derivative, whatever its backward says."""

    @staticmethod
    def forward(ctx, x):
        y = x * 1
        ctx.mark_non_differentiable(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class DividedByAMarked(torch.autograd.Function):
    """x ** 2, with a backward that is not linear, and divides by a constant that it computes."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x * cotangent / Marked.apply((cotangent**2).sum() + 1)


def test_what_is_marked_within_a_rule_is_a_constant_below_vmap_too():
    function = pullback.complete(DividedByAMarked, gradient="nonlinear")

    def square(f):
        return lambda x: (f(x) ** 2).sum()

    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(square(DividedByAMarked.apply)(x), x, create_graph=True)
    rows = [torch.autograd.grad(entry, x, retain_graph=True)[0] for entry in first]
    agree(func.jacrev(func.jacrev(square(function.apply)))(X), torch.stack(rows))


class WithoutAGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, cotangent):
        return None


class ReturnsWhatItSaves(torch.autograd.Function):
    """x * sum(x), and the sum as an output that has no derivative."""

    @staticmethod
    def forward(ctx, x):
        total = WithoutAGradient.apply(x.sum())
        ctx.save_for_backward(x, total)
        ctx.mark_non_differentiable(total)
        return x * x.sum(), total

    @staticmethod
    def backward(ctx, cotangent, _):
        x, total = ctx.saved_tensors
        return total * cotangent + (cotangent * x).sum()


def test_an_output_without_a_derivative_vouches_for_nothing():
    function = pullback.complete(ReturnsWhatItSaves)
    right_or_refused(
        lambda f: torch.autograd.functional.hessian(lambda x: (f(x) ** 2).sum(), X),
        lambda x: function.apply(x)[0],
        lambda x: x * x.sum(),
    )


class LoadsAMask(torch.autograd.Function):
    """relu(x) * x, with a mask that has been through a file."""

    @staticmethod
    def forward(ctx, x):
        file = io.BytesIO()
        torch.save((x > 0).to(x.dtype), file)
        file.seek(0)
        ctx.mask = torch.load(file)
        ctx.save_for_backward(x)
        return torch.relu(x) * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * ctx.mask * x * cotangent


def test_what_is_loaded_from_a_file_has_its_numbers():
    right_or_refused(
        lambda f: torch.autograd.functional.jvp(f, X, X)[1],
        pullback.complete(LoadsAMask).apply,
        lambda x: torch.relu(x) * x,
    )


class CubeThatPasses(torch.autograd.Function):
    """The cube, with the backward of the identity."""

    @staticmethod
    def forward(ctx, x):
        return x**3

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class KeepsItInHalf(torch.autograd.Function):
    """The cube, whose derivative at .577 is nearly that of the identity."""

    kept = {}  # noqa: RUF012 - another call's value is there, too

    @staticmethod
    def forward(ctx, x):
        y = CubeThatPasses.apply(x)
        ctx.n = len(KeepsItInHalf.kept)
        KeepsItInHalf.kept[ctx.n] = y.half().to(y.dtype)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * KeepsItInHalf.kept[ctx.n] / x * cotangent


def test_what_half_precision_hides_is_less_than_a_few_of_its_steps():
    x, v = torch.tensor([0.5777, 0.5948, 0.5831]), torch.tensor([0.98, 1.33, 1.16])
    function = pullback.complete(KeepsItInHalf, gradient="exact")
    with pytest.raises(PullbackError, match="another derivative"):
        func.jvp(lambda a: func.jvp(function.apply, (a,), (v,))[1], (x,), (v,))


def _written(write):
    class Filled(torch.autograd.Function):
        """x ** 2 / 2, whose slope is written into a buffer through what shares its memory."""

        @staticmethod
        def forward(x):
            return x * x / 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            return write(x * cotangent)

    return Filled


def _through(view):
    def write(value):
        buffer = torch.zeros_like(value)
        view(buffer).copy_(value)
        return buffer

    return write


SHARED = {
    "view": lambda b: b.view(-1),
    "itself": lambda b: b.contiguous(),
    "alias": torch.ops.aten.alias,
    "its own dtype": lambda b: b.view(b.dtype),
    "detached": lambda b: b.detach(),
}
AT_ANY_ORDER = {
    "jacrev": func.jacrev,
    "jacrev of grad": lambda f: func.jacrev(func.grad(lambda x: (f(x) ** 2).sum())),
    "jacrev of jacrev": lambda f: func.jacrev(func.jacrev(lambda x: (f(x) ** 2).sum())),
    "hessian": lambda f: func.hessian(lambda x: (f(x) ** 2).sum()),
    "jacfwd of jacfwd": lambda f: func.jacfwd(func.jacfwd(lambda x: (f(x) ** 2).sum())),
    "of autograd": lambda f: (
        lambda x: torch.autograd.functional.hessian(lambda a: (f(a) ** 2).sum(), x)
    ),
}


@pytest.mark.parametrize("order", AT_ANY_ORDER)
@pytest.mark.parametrize("view", SHARED)
def test_a_buffer_that_is_filled_through_what_shares_its_memory(view, order):
    function = pullback.complete(_written(_through(SHARED[view])), gradient="exact")
    ask = AT_ANY_ORDER[order]
    if order == "jacrev":  # the first derivative is never refused
        agree(ask(function.apply)(X), torch.diag(X))
    right_or_refused(lambda f: ask(f)(X), function.apply, lambda x: x * x / 2)


def _kept(write, within):
    class KeepsABuffer(pullback.Function):
        """x ** 2 / 2, whose slope was written into a buffer, and goes through a transform."""

        gradient = "exact"

        @staticmethod
        def forward(x):
            return x * x / 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.slope = write(*inputs)

        @staticmethod
        def backward(ctx, cotangent):
            return within(ctx.slope) * cotangent

    return KeepsABuffer


WRITES = {
    "copy": lambda x: torch.zeros_like(x).copy_(x),
    "add": lambda x: torch.zeros_like(x).add_(x),
    "multiply": lambda x: torch.ones_like(x).mul_(x),
}
WITHIN = {
    "grad": func.grad(lambda s: (s * s / 2).sum()),
    "vjp": lambda s: func.vjp(lambda t: t * 1, s)[0],
    "vmap": func.vmap(lambda s: s * 1),
    "functionalize": func.functionalize(lambda s: s * 1),
}


@pytest.mark.parametrize("within", WITHIN)
@pytest.mark.parametrize("write", WRITES)
def test_a_transform_within_is_given_a_buffer_that_was_written(write, within):
    function = _kept(WRITES[write], WITHIN[within]).apply

    def ask(f):
        twice = func.jacfwd(func.jacfwd(lambda x: (f(x) ** 2).sum()))(X)
        return twice, func.grad(lambda x: func.jvp(lambda a: f(a).sum(), (x,), (X,))[1])(X)

    right_or_refused(ask, function, lambda x: x * x / 2)


class LoadsItsRoot(torch.autograd.Function):
    """The root of y ** 3 + y = x, found in steps, which reaches backward through a file."""

    kept = {}  # noqa: RUF012 - of whoever was called last

    @staticmethod
    def forward(x):
        low, high = torch.full_like(x, -4.0), torch.full_like(x, 4.0)
        for _ in range(60):
            y = (low + high) / 2
            low, high = torch.where(y**3 + y < x, y, low), torch.where(y**3 + y < x, high, y)
        return y

    @staticmethod
    def setup_context(ctx, inputs, output):
        file = io.BytesIO()
        torch.save(output.detach().clone(), file)
        file.seek(0)
        LoadsItsRoot.kept["y"] = torch.load(file)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent / (1 + 3 * LoadsItsRoot.kept["y"] ** 2)


def test_what_forward_computes_for_one_item_of_a_batch_is_no_constant():
    x = ROWS.clone().requires_grad_()
    function = pullback.complete(LoadsItsRoot, gradient="exact").apply
    first = func.vmap(func.grad(lambda a: function(a).sum()))(x)
    y = torch.stack([LoadsItsRoot.forward(row) for row in ROWS])
    agree(first, 1 / (1 + 3 * y**2))
    with pytest.raises(PullbackError):  # -6 y / (1 + 3 y ** 2) ** 3, or refused
        torch.autograd.grad((first * ROWS).sum(), x)


DRAWS = {
    "torch": (
        lambda: torch.Generator().manual_seed(0),
        lambda x, g: torch.rand(x.shape, generator=g, dtype=x.dtype),
    ),
    "numpy": (lambda: np.random.default_rng(0), lambda x, g: torch.from_numpy(g.random(x.shape))),
    "random": (
        lambda: random.Random(0),
        lambda x, g: torch.tensor([g.random() for _ in x], dtype=x.dtype),
    ),
}


@both
@pytest.mark.parametrize("kind", DRAWS)
def test_a_generator_that_is_handed_over_is_drawn_from_as_often_as_in_torch(way, kind):
    make, draw = DRAWS[kind]

    class Stochastic(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, g):
            drawn = draw(x, g)
            ctx.slope = 2 * x * drawn
            return x * x * drawn

        @staticmethod
        def backward(ctx, cotangent):
            return ctx.slope * cotangent, None

    F, given, own = way(Stochastic), make(), make()
    for _ in range(2):
        agree(func.grad(lambda x: F.apply(x, given).sum())(X), 2 * X * draw(X, own))
    for _ in range(2):
        x = X.clone().requires_grad_()
        (slope,) = torch.autograd.grad(F.apply(x, given).sum(), x, create_graph=True)
        drawn = draw(X, own)
        agree(slope, 2 * X * drawn)
        agree(torch.autograd.grad(slope.sum(), x)[0], 2 * drawn)


@both
def test_an_output_that_was_drawn_is_the_same_when_forward_runs_again(way):
    class Dropped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * x * (torch.rand_like(x) > 0.5)
            ctx.save_for_backward(y)
            ctx.ratio = 2 / x
            return y

        @staticmethod
        def backward(ctx, cotangent):
            return ctx.saved_tensors[0] * ctx.ratio * cotangent

    torch.manual_seed(1)
    x = torch.rand(8, dtype=torch.float64).requires_grad_()
    y = way(Dropped).apply(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    agree(torch.autograd.grad(slope.sum(), x)[0], 2 * (y > 0).to(x))


@both
@pytest.mark.parametrize("most", [1e2, 1e3, 1e5, 1e7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_cotangent_that_is_clipped_has_no_transpose(way, most, dtype):
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent.clamp(-most, most)

    x = torch.ones(3, dtype=dtype)
    with pytest.raises(PullbackError, match="cannot be derived"):
        func.jvp(way(Clipped).apply, (x,), (1e4 * x,))


class Crooked(torch.autograd.Function):
    """The cube, with the backward of the identity."""

    @staticmethod
    def forward(ctx, x):
        return x**3

    @staticmethod
    def backward(ctx, g):
        return g


@both
def test_what_is_given_by_out_is_written_for_whoever_keeps_it(way):
    kept = []

    class Keeping(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return Crooked.apply(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            out = torch.empty(output.shape, dtype=output.dtype)
            with torch.no_grad():
                torch.add(output, 0, out=out)
            kept.append(out)
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * kept[-1] / x * g

    apply = way(Keeping).apply

    def twice(f):
        return func.grad(lambda x: func.grad(lambda x: (f(x) ** 2).sum())(x).sum())(X)

    right_or_refused(twice, apply, lambda x: x**3)
    # The rule reads what was kept, so that it has to be there.
    agree(func.grad(lambda x: apply(x).sum())(X), 3 * X**2)


class Recomputed(torch.autograd.Function):
    """x * weight, of which backward asks a graph of its own, as reentrant checkpointing does."""

    weight: torch.Tensor

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * Recomputed.weight.detach()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            private = x.detach().requires_grad_()
            y = private * Recomputed.weight
        torch.autograd.backward(y, cotangent)
        return private.grad


class Restored(Recomputed):
    """The same, of its output, as a reversible layer has it."""

    @staticmethod
    def forward(ctx, x):
        y = x * Recomputed.weight.detach()
        ctx.save_for_backward(y.clone())
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        with torch.enable_grad():
            private = (y / Recomputed.weight).detach().requires_grad_()
            (private * Recomputed.weight).backward(cotangent)
        return private.grad


def modes_hear(function):
    """Whether a mode of torch functions hears a call."""
    heard = []

    class Hears(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            heard.append(func)
            return func(*args, **(kwargs or {}))

    y = torch.ones(1, requires_grad=True) * 2
    with Hears():
        function(y)
    return function in heard


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
@pytest.mark.parametrize("kind", [Recomputed, Restored])
def test_a_backward_that_adds_to_leaves_adds_once_under_create_graph(kind):
    if kind is Recomputed and not modes_hear(torch.autograd.backward):
        pytest.skip("this torch does not say that a rule calls torch.autograd.backward")

    def ask(function):
        Recomputed.weight = torch.tensor([2.0, 3.0, 5.0], dtype=X.dtype).requires_grad_()
        x = X.clone().requires_grad_()
        (function(function(x)) ** 2).sum().backward(create_graph=True)
        return x.grad.detach(), Recomputed.weight.grad.detach()

    completed = pullback.complete(kind, keep_inputs=True).apply
    agree(ask(completed), ask(lambda x: x * Recomputed.weight))
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(pullback.complete(kind).apply(x).sum(), x, create_graph=True)
    with pytest.raises(PullbackError, match="adds to the gradients of leaves"):
        torch.autograd.grad(first.sum(), x)


class HalvesWhatIsLarge(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        if cotangent.norm() > 1:
            cotangent = cotangent / 2
        return 2 * x * cotangent


class DividesByWhatWasRead(HalvesWhatIsLarge):
    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x * cotangent / (1 + cotangent.detach().norm().item())


class SkipsZeros(HalvesWhatIsLarge):
    """Linear, whichever way it goes."""

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x * cotangent if cotangent.any() else torch.zeros_like(x)


@pytest.mark.parametrize("kind", [HalvesWhatIsLarge, DividesByWhatWasRead])
def test_what_a_cotangent_decides_in_python_is_not_taken_for_linear(kind):
    with pytest.raises(PullbackError, match="cannot be derived"):
        func.jvp(pullback.complete(kind).apply, (X,), (X,))


def test_a_decision_that_leaves_backward_linear_is_no_refusal():
    value, tangent = func.jvp(pullback.complete(SkipsZeros).apply, (X,), (X,))
    agree((value, tangent), (X * X, 2 * X * X))


class CutOutside(torch.autograd.Function):
    """Its output is kept outside of the context, and cut as old code cuts."""

    kept: dict[int, torch.Tensor] = {}  # noqa: RUF012 - as authors write it

    @staticmethod
    def forward(x):
        return x.tanh()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.number = id(inputs[0])
        CutOutside.kept[ctx.number] = output

    @staticmethod
    def backward(ctx, cotangent):
        y = torch.autograd.Variable(CutOutside.kept[ctx.number].data)
        return (1 - y * y) * cotangent


def test_what_is_made_unseen_of_a_cut_value_is_cut_as_well():
    def loss(x):
        y = pullback.complete(CutOutside, gradient="exact").apply(x)
        return (y + y * y / 2).sum()

    y = X.tanh()
    try:
        found = func.hessian(loss)(X)
    except PullbackError:
        return
    agree(found, torch.diag((1 - y * y) ** 2))  # backward's y is a constant
