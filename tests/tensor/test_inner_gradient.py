"""Rules that take a gradient themselves, of leaves that they make of their arguments."""

import pytest
import torch
from tests.tensor.helpers import agree

import pullback
from pullback.errors import UnsupportedError

func = torch.func
X = torch.tensor([0.6, -1.1, 1.4], dtype=torch.float64)


def of_a_detached(x):
    return torch.nn.Parameter(x.detach())


def of_itself(x):
    return torch.nn.Parameter(x)


def of_a_copy(x):
    return torch.nn.Parameter(x.clone())


def made(leaf):
    """2 x ** 3 / 3, whose backward is what the gradient of p ** 2 * x has through p."""

    class Partial(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return 2 * x**3 / 3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                inner = leaf(x)
                value = inner**2 * x.detach()
                return torch.autograd.grad(value, inner, g)[0]

    return Partial


ASKED = {
    "hessian": func.hessian,
    "reverse over reverse": lambda f: func.jacrev(func.jacrev(f)),
    "vmap of hessian": lambda f: lambda x: func.vmap(func.hessian(f))(torch.stack([x, 2 * x])),
    "create_graph": lambda f: lambda x: torch.autograd.functional.hessian(f, x),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("leaf", [of_a_detached, of_itself, of_a_copy])
def test_a_parameter_made_of_an_input(leaf, ask):
    apply = pullback.complete(made(leaf)).apply
    try:  # the other factor is detached, which states a stop-gradient
        got = ask(lambda x: apply(x).sum())(X)
    except UnsupportedError:
        return
    agree(got, ask(lambda x: (2 * x**3 / 3).sum())(X))


class OfInput(torch.autograd.Function):
    """sin(x), differentiated by backward with respect to the input of forward itself."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            value = x.sin()
        ctx.save_for_backward(x, value)
        return value.detach()

    @staticmethod
    def backward(ctx, g):
        x, value = ctx.saved_tensors
        return torch.autograd.grad(value, x, g)[0]


class OfInputThroughWeights(OfInput):
    """The same, where the graph has another leaf, so that only its other end is missing."""

    weight = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            value = (x * OfInputThroughWeights.weight / 2).sin()
        ctx.save_for_backward(x, value)
        return value.detach()


@pytest.mark.parametrize("function", [OfInput, OfInputThroughWeights])
def test_an_input_that_is_no_leaf_below_a_transform_is_right_or_refused(function):
    apply = pullback.complete(function).apply
    x = X.clone().requires_grad_()
    agree(torch.autograd.grad(apply(x).sum(), x)[0], x.detach().cos())
    try:
        got = func.grad(lambda x: apply(x).sum())(X)
    except UnsupportedError as error:
        assert "no leaves of autograd below a transform" in str(error)  # noqa: PT017 - or right
        return
    agree(got, X.cos())


class OfInputAndCopy(torch.autograd.Function):
    """sin(x * y), differentiated with respect to a copy of x and to y itself."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x * y).sin()

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        with torch.enable_grad():
            copy = x.detach().requires_grad_()
            value = (copy * y).sin()
        return torch.autograd.grad(value, (copy, y), g, allow_unused=True)


@pytest.mark.parametrize("batching", ["auto", "loop"])
def test_an_input_that_may_be_unused_is_not_taken_for_one_below_vmap(batching):
    apply = pullback.complete(OfInputAndCopy, batching=batching).apply
    rows = torch.stack([X, 2 * X]).requires_grad_()
    others = torch.stack([3 * X, X]).requires_grad_()
    want = torch.autograd.grad((rows * others).sin().sum(), (rows, others))
    total = torch.vmap(apply)(rows, others).sum()
    try:
        got = torch.autograd.grad(total, (rows, others), allow_unused=True)
    except UnsupportedError as error:
        assert "no leaves of autograd below a transform" in str(error)  # noqa: PT017 - or right
        return
    agree(got, want)


class AsksItsOutput(torch.autograd.Function):
    """exp(x), whose backward takes a saved output that requires no gradient for a constant."""

    @staticmethod
    def forward(ctx, x):
        value = x.exp()
        ctx.save_for_backward(value)
        return value

    @staticmethod
    def backward(ctx, g):
        (value,) = ctx.saved_tensors
        return g * value if value.requires_grad else torch.zeros_like(g)


@pytest.mark.parametrize("name", ["grad", "jacrev", "jacfwd", "hessian"])
def test_a_saved_output_says_below_a_transform_that_it_requires_a_gradient(name):
    apply = pullback.complete(AsksItsOutput).apply
    ask = getattr(func, name)
    agree(ask(lambda x: apply(x).sum())(X), ask(lambda x: x.exp().sum())(X))
    rows = torch.stack([X, -X])
    got = func.vmap(ask(lambda x: apply(x).sum()))(rows)
    agree(got, func.vmap(ask(lambda x: x.exp().sum()))(rows))


BY_A_TRANSFORM = {
    "vjp": lambda x, g: func.vjp(torch.exp, x)[1](g)[0],
    "grad": lambda x, g: func.grad(lambda t: (t.exp() * g).sum())(x),
    "jvp": lambda x, g: func.jvp(torch.exp, (x,), (g,))[1],
    "jacrev": lambda x, g: func.jacrev(torch.exp)(x) @ g,
    "vmap": func.vmap(lambda t, u: t.exp() * u),
}
OF_EXP = {
    "jvp": lambda f: func.jvp(f, (X,), (X,))[1],
    "jvp of grad": lambda f: func.jvp(func.grad(lambda x: f(x).sum()), (X,), (X,))[1],
    "grad of jvp": lambda f: func.grad(lambda x: func.jvp(f, (x,), (X,))[1].sum())(X),
    "create_graph": lambda f: torch.autograd.functional.hessian(lambda x: f(x).sum(), X),
}


@pytest.mark.parametrize("rule", BY_A_TRANSFORM.values(), ids=BY_A_TRANSFORM)
def test_a_backward_may_use_a_transform(rule):
    class Exponential(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return rule(x, g)

    apply = pullback.complete(Exponential).apply
    for ask in OF_EXP.values():
        agree(ask(apply), ask(torch.exp))
    try:
        got = func.hessian(lambda x: apply(x).sum())(X)
    except UnsupportedError:
        return
    agree(got, X.exp().diag())


class DetachesInItsOwnGraph(torch.autograd.Function):
    """x / std, where forward makes a graph in which std is a constant, for backward to ask."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            value = x / x.std().detach()
        ctx.save_for_backward(x, value)
        return value.detach()

    @staticmethod
    def backward(ctx, g):
        x, value = ctx.saved_tensors
        return torch.autograd.grad(value, x, g)[0]


class StopsInItsOwnGraph(DetachesInItsOwnGraph):
    """The same by ``no_grad`` within ``enable_grad``."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            with torch.no_grad():
                std = x.std()
            value = x / std
        ctx.save_for_backward(x, value)
        return value.detach()


@pytest.mark.parametrize("function", [DetachesInItsOwnGraph, StopsInItsOwnGraph])
def test_what_forward_stops_in_a_graph_of_its_own_is_stopped_or_refused(function):
    apply = pullback.complete(function).apply
    x = X.clone().requires_grad_()
    want = torch.autograd.grad(apply(x).sum(), x)[0]
    agree(want, torch.ones(3, dtype=X.dtype) / X.std())
    asked = {
        "grad": lambda f: func.grad(f)(X),
        "vmap": lambda f: func.vmap(func.grad(f))(X[None])[0],
    }
    for ask in asked.values():
        try:
            got = ask(lambda x: apply(x).sum())
        except UnsupportedError:
            continue
        agree(got, want)
