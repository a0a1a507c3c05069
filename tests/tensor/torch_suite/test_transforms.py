"""What torch holds its custom Functions to under torch.func: ours are held to the same.

On the subjects of TestAutogradFunction, of its vmap rules, and of torch.func with custom Functions.
"""

import pytest
import torch
from tests.tensor.torch_suite.ways import both

import pullback
from pullback.errors import PullbackError

func = torch.func
X = torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64)


def with_rule(base, rule):
    class Ruled(base):
        @staticmethod
        def forward(x, y):
            return x * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, g * x

        vmap = staticmethod(rule)

    return Ruled


def in_both_ways(rule):
    own = with_rule(pullback.Function, rule)
    return own, pullback.complete(with_rule(torch.autograd.Function, rule))


def test_a_vmap_rule_is_told_the_batch():
    seen = []

    def rule(info, in_dims, x, y):
        seen.append((info.batch_size, info.randomness, in_dims))
        return x * y, 0

    for function in in_both_ways(rule):
        func.vmap(function.apply, randomness="different")(X, X)
        func.vmap(function.apply, (0, None))(X, X[0])
        torch.testing.assert_close(
            func.vmap(function.apply)(X.expand(2, 3), X.expand(2, 3)), (X * X).expand(2, 3)
        )
    assert seen[0][:2] == (3, "different")
    assert seen[0][2] == (0, 0)
    assert seen[1][2] == (0, None)


def test_a_vmap_rule_is_not_asked_where_nothing_is_batched():
    def rule(info, in_dims, x, y):
        raise AssertionError("asked")

    for function in in_both_ways(rule):
        torch.testing.assert_close(
            func.vmap(lambda t, f=function: t + f.apply(X[0], X[1]))(X), X + X[0] * X[1]
        )


@pytest.mark.parametrize(
    "rule",
    [
        lambda info, in_dims, x, y: x * y,
        lambda info, in_dims, x, y: (x * y, 0, 0),
        lambda info, in_dims, x, y: None,
        lambda info, in_dims, x, y: (x * y, (0, 0)),
        lambda info, in_dims, x, y: ((x * y, x), (0,)),
        lambda info, in_dims, x, y: (x * y, "0"),
        lambda info, in_dims, x, y: (x * y, 5),
    ],
)
def test_a_vmap_rule_that_returns_something_else_is_an_error(rule):
    for function in in_both_ways(rule):
        with pytest.raises((PullbackError, RuntimeError, ValueError, IndexError)):
            func.vmap(function.apply)(X, X)


def test_both_a_rule_and_a_generated_one_contradict_each_other():
    function = with_rule(pullback.Function, lambda info, in_dims, x, y: (x * y, 0))
    function.generate_vmap_rule = True
    with pytest.raises((PullbackError, RuntimeError)):
        func.vmap(function.apply)(X, X)


def counts_needs(base):
    class Needs(base):
        @staticmethod
        def forward(x, y):
            return x * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            first, second = ctx.needs_input_grad
            return g * y if first else None, g * x if second else None

    return Needs


@both(counts_needs)
@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
def test_needs_input_grad(function, argnums):
    y = X + 1
    torch.testing.assert_close(
        func.grad(lambda a, b: function.apply(a, b).sum(), argnums)(X, y),
        func.grad(lambda a, b: (a * b).sum(), argnums)(X, y),
    )
    torch.testing.assert_close(
        func.vmap(func.grad(function.apply, argnums))(X, y),
        func.vmap(func.grad(lambda a, b: a * b, argnums))(X, y),
    )


def marks(base):
    class Marked(base):
        @staticmethod
        def forward(x):
            return x * 2, x * 3, x.argmax(-1)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_non_differentiable(output[1])
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx, g, h, k):
            assert h is None
            assert k is None
            return None if g is None else 2 * g

    return Marked


@both(marks)
def test_outputs_that_are_not_differentiable(function):
    for total in (lambda y, z, i: y.sum(), lambda y, z, i: y.sum() + z.sum()):
        torch.testing.assert_close(
            func.grad(lambda x, t=total: t(*function.apply(x)))(X), torch.full_like(X, 2)
        )
    rows = torch.stack([X, X.flip(0)])
    _, z, i = func.vmap(function.apply)(rows)
    assert i.tolist() == [2, 0]
    torch.testing.assert_close(z, rows * 3)


@both(marks)
def test_forward_mode_beside_them(function):
    _, tangents = func.jvp(function.apply, (X,), (X,))
    torch.testing.assert_close(tangents[0], 2 * X)
    assert (tangents[1] == 0).all()


def returns_lists(base):
    class Lists(base):
        @staticmethod
        def forward(x):
            return x.sin(), x.cos()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*output)

        @staticmethod
        def backward(ctx, g, h):
            sine, cosine = ctx.saved_tensors
            return g * cosine - h * sine

    return Lists


@both(returns_lists)
@pytest.mark.parametrize("outer", ["jacrev", "jacfwd"])
@pytest.mark.parametrize("inner", ["jacrev", "jacfwd"])
def test_outputs_that_are_saved_carry_history(function, outer, inner):
    def twice(f):
        return getattr(func, outer)(getattr(func, inner)(lambda x: f(x)[0] * f(x)[1]))(X)

    torch.testing.assert_close(twice(function.apply), twice(lambda x: (x.sin(), x.cos())))


def closes_over(base):
    class Simple(base):
        @staticmethod
        def forward(x, n):
            return x**n

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])
            ctx.n = inputs[1]

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * ctx.n * x ** (ctx.n - 1), None

    return Simple


@both(closes_over)
def test_each_level_has_its_own_tensors(function):
    def f(y):
        def g(x):
            return (function.apply(x, 3) * function.apply(y, 2)).sum()

        return func.grad(g)(y * 2).sum()

    def plain(y):
        return func.grad(lambda x: (x**3 * y**2).sum())(y * 2).sum()

    torch.testing.assert_close(func.grad(f)(X), func.grad(plain)(X))
    torch.testing.assert_close(func.vmap(func.grad(f))(X), func.vmap(func.grad(plain))(X))


@both(closes_over)
def test_aux_and_has_aux(function):
    def f(x):
        y = function.apply(x, 3)
        return y.sum(), y

    gradient, aux = func.grad(f, has_aux=True)(X)
    torch.testing.assert_close(gradient, 3 * X**2)
    torch.testing.assert_close(aux, X**3)


@both(closes_over)
def test_chunks_and_nested_batches(function):
    rows = torch.stack([X, X + 1, X - 3, X * 2])
    cube = func.vmap(lambda x: function.apply(x, 3), chunk_size=2)
    torch.testing.assert_close(cube(rows), rows**3)
    both_dims = func.vmap(func.vmap(lambda x: function.apply(x, 3), in_dims=0), in_dims=1)
    torch.testing.assert_close(both_dims(rows), (rows**3).T)


@both(closes_over)
def test_parameters_of_a_module(function):
    net = torch.nn.Linear(3, 1, dtype=torch.float64)

    def total(parameters, f):
        return f(func.functional_call(net, parameters, (X,))).sum()

    parameters = {name: p.detach() for name, p in net.named_parameters()}
    torch.testing.assert_close(
        func.grad(total)(parameters, lambda x: function.apply(x, 3)),
        func.grad(total)(parameters, lambda x: x**3),
    )


def in_place(base):
    class Double(base):
        @staticmethod
        def forward(x):
            x.mul_(2)
            return x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_dirty(inputs[0])

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    return Double


@both(in_place)
def test_in_place_below_transforms(function):
    def doubled(x):
        y = x.clone()
        function.apply(y)
        return y

    def plain(x):
        return 2 * x

    for ask in (
        lambda f: func.grad(lambda x: f(x).sum())(X),
        lambda f: func.vmap(func.grad(lambda x: f(x).sum()))(X),
        lambda f: func.vmap(f)(X),
    ):
        try:
            got = ask(doubled)
        except PullbackError:
            continue
        torch.testing.assert_close(got, ask(plain))
