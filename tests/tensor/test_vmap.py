"""vmap: every in_dim, around and inside of derivatives, derived, by rule and item by item."""

import numpy as np
import pytest
import torch
from tests.tensor.helpers import SEED, agree, every_row, weighted

import pullback
from pullback.errors import PullbackError, UnsupportedError

func = torch.func


def batched(args, dim):
    return tuple(torch.stack([x, x * 2 - 1, -x], dim=dim) for x in args)


@every_row
@pytest.mark.parametrize("dim", [0, -1])
def test_batched_equals_the_formula(row, dim):
    args = batched(row.arguments(SEED), dim)
    agree(func.vmap(row.function, in_dims=dim)(*args), func.vmap(row.formula, in_dims=dim)(*args))


@every_row
def test_one_argument_batched(row):
    x, *rest = row.arguments(SEED)
    (xs,) = batched((x,), 0)
    dims = (0, *(None for _ in rest))
    argnums = tuple(range(1 + len(rest)))
    for transform in (lambda f: f, lambda f: func.grad(weighted(f), argnums)):
        agree(
            func.vmap(transform(row.function), in_dims=dims)(xs, *rest),
            func.vmap(transform(row.formula), in_dims=dims)(xs, *rest),
        )


@every_row
@pytest.mark.parametrize("outside", [True, False])
def test_with_derivatives(row, outside):
    args = batched(row.arguments(SEED), 0)
    argnums = tuple(range(len(args)))

    def gradient(function):
        if outside:
            return func.vmap(func.grad(weighted(function), argnums))(*args)
        return func.grad(lambda *a: func.vmap(weighted(function))(*a).sum(), argnums)(*args)

    def curvature(function):
        if outside:
            return func.vmap(func.hessian(weighted(function), argnums))(*args)
        return func.hessian(lambda *a: func.vmap(weighted(function))(*a).sum(), argnums)(*args)

    agree(gradient(row.function), gradient(row.formula))
    agree(curvature(row.function), curvature(row.formula))


@every_row
def test_nested_batches(row):
    args = tuple(torch.stack([a, a + 1]) for a in batched(row.arguments(SEED), 0))
    agree(
        func.vmap(func.vmap(row.function), in_dims=1)(*args),
        func.vmap(func.vmap(row.formula), in_dims=1)(*args),
    )


class Opaque(pullback.Function):
    """A kernel that torch cannot look into, batched item by item."""

    batching = "loop"

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        assert x.dim() == 1
        return torch.from_numpy(np.cumsum(x.detach().numpy() ** 2))

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        total = np.cumsum(cotangent.detach().numpy()[::-1])[::-1].copy()
        return torch.from_numpy(2 * x.detach().numpy() * total)


def test_item_by_item():
    xs = torch.randn(3, 4, dtype=torch.float64)
    agree(func.vmap(Opaque.apply)(xs), (xs**2).cumsum(-1))
    agree(func.vmap(Opaque.apply, in_dims=1)(xs), (xs.T**2).cumsum(-1))

    def scalar(function):
        return lambda x: (function(x) ** 2).sum()

    agree(
        func.vmap(func.grad(scalar(Opaque.apply)))(xs),
        func.vmap(func.grad(scalar(lambda x: (x**2).cumsum(-1))))(xs),
    )


def test_item_by_item_refuses_what_it_cannot():
    xs = torch.randn(3, 4, dtype=torch.float64)
    with pytest.raises(pullback.errors.UnsupportedError, match="batch is empty"):
        func.vmap(Opaque.apply)(xs[:0])
    with pytest.raises(pullback.errors.UnsupportedError, match="Opaque batches item by item"):
        func.vmap(func.grad(lambda x: func.grad(lambda y: Opaque.apply(y).sum())(x).sum()))(xs)


def counting():
    """A kernel whose forward counts, keeps running means and fills a tensor for backward."""
    steps, mean, scratch = torch.zeros(()), torch.zeros(4), torch.zeros(4, dtype=torch.float64)
    running = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)

    class Counting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            steps.add_(1)
            y = torch.from_numpy(np.sin(x.detach().numpy()))
            mean.mul_(0.9)
            mean[:] += 0.1 * y
            torch.nn.functional.batch_norm(torch.stack([y, x]), *running, training=True)
            scratch.copy_(x.cos())
            return y

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * scratch

    return pullback.complete(Counting), (steps, mean, scratch, *running)


@pytest.mark.parametrize(
    "ask",
    [
        lambda f, xs: func.vmap(f)(xs),
        lambda f, xs: func.vmap(func.grad(lambda x: f(x).sum()))(xs),
        lambda f, xs: func.vmap(lambda x: func.jvp(f, (x,), (x,))[1])(xs),
    ],
    ids=["vmap", "grad", "jvp"],
)
def test_tensors_outside_are_written_as_in_a_loop_over_the_items(ask):
    xs = torch.randn(3, 4, dtype=torch.float64)
    function, kept = counting()
    agree(ask(function.apply, xs), ask(torch.sin, xs))
    looped, wanted = counting()
    for x in xs:
        looped.apply(x)
    agree(kept, wanted)


def test_what_is_put_back_below_a_transform_is_of_none():
    buffer = torch.zeros(0, dtype=torch.float64)

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            buffer.resize_(x.shape).copy_((x * x).detach())
            return (buffer.clone() + 2 * x * x) * cotangent

    xs = torch.randn(3, 2, dtype=torch.float64)
    cube = pullback.complete(Cube, gradient="exact").apply
    for function in (cube, lambda x: x**3):
        gradients = func.vmap(func.grad(lambda x, f=function: (f(x) ** 2).sum()), in_dims=1)(xs)
        agree(gradients, 6 * xs.T**5)


def test_what_a_rule_asks_a_gradient_of_is_not_put_back():
    class Asks(pullback.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = lambda: x
            return x**3

        @staticmethod
        def backward(ctx, cotangent):
            x = ctx.kept()
            square = torch.autograd.functional.vjp(lambda s: s**3, x, torch.ones_like(x))[1]
            return square * cotangent

    xs = torch.randn(3, 2, dtype=torch.float64)
    with pytest.raises(PullbackError):  # torch lets nobody ask for a gradient there
        func.vmap(func.grad(lambda x: Asks.apply(x).sum()), in_dims=1)(xs)


class Weighted(pullback.Function):
    """Forward ignores the weight, backward does not."""

    gradient = "surrogate"

    @staticmethod
    def forward(x, weight):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, cotangent):
        (weight,) = ctx.saved_tensors
        return cotangent * weight, None


def test_a_batched_argument_that_only_backward_depends_on():
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    weights = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    outer = torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64)

    def total(x):
        return (outer[:, None] * func.vmap(Weighted.apply, in_dims=(None, 0))(x, weights)).sum()

    agree(func.grad(total)(x), torch.full_like(x, 2 + 30 + 500))
    y = x.clone().requires_grad_()
    agree(torch.autograd.grad(total(y), y)[0], torch.full_like(x, 2 + 30 + 500))


def test_items_that_save_other_tensors_are_refused():
    class Branching(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(*([x.exp()] if x.sum() > 0 else [x.exp(), x.sin()]))
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    xs = torch.tensor([[1.0], [-1.0]])
    with pytest.raises(pullback.errors.UnsupportedError, match="the tensors that it saves"):
        func.vmap(pullback.complete(Branching).apply)(xs)


def test_completed_functions_loop_where_torch_cannot_batch():
    class Branching(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2 if x.sum() > 0 else x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (2 * x if x.sum() > 0 else 3 * x**2)

    xs = torch.tensor([[1.0, 2.0], [-1.0, -3.0]], dtype=torch.float64)
    apply = pullback.complete(Branching).apply
    agree(func.vmap(apply)(xs), torch.stack([xs[0] ** 2, xs[1] ** 3]))
    agree(
        func.vmap(func.grad(lambda x: apply(x).sum()))(xs),
        torch.stack([2 * xs[0], 3 * xs[1] ** 2]),
    )


class Accumulates(torch.autograd.Function):
    """The state and x, added up in the state's own memory, which nothing declares."""

    @staticmethod
    def forward(ctx, x, state):
        state += x
        return state.clone()

    @staticmethod
    def backward(ctx, g):
        return g, None


@pytest.mark.parametrize("batching", ["auto", "loop"])
def test_a_state_that_all_items_share_and_change_is_refused(batching):
    apply = pullback.complete(Accumulates, batching=batching).apply
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64)
    with pytest.raises(UnsupportedError, match="changes an argument in place"):
        torch.vmap(apply, in_dims=(0, None))(rows, torch.zeros(2, dtype=torch.float64))
    got = torch.vmap(apply)(rows, torch.zeros_like(rows))
    assert torch.equal(got, rows)


class Noisy(torch.autograd.Function):
    """A product with numbers that forward draws."""

    @staticmethod
    def forward(ctx, x):
        ctx.noise = torch.rand_like(x)
        return x * ctx.noise

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.noise


@pytest.mark.parametrize("batching", ["auto", "loop", "derived"])
def test_numbers_are_drawn_as_vmap_is_told(batching):
    noisy, ones = pullback.complete(Noisy, batching=batching).apply, torch.ones(3, 2)
    with pytest.raises(UnsupportedError, match="random"):
        func.vmap(noisy)(ones)
    same = func.vmap(noisy, randomness="same")(ones)
    assert torch.equal(same, same[:1].expand(3, 2))
    different = func.vmap(noisy, randomness="different")(ones)
    assert len(different.unique()) == different.numel()
    x = torch.ones(2)
    assert not torch.equal(noisy(x), noisy(x))  # the generator has gone on


@pytest.mark.parametrize("batching", ["loop", "auto"])
def test_items_with_shapes_of_their_own_are_refused_by_name(batching):
    class Positive(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            where = (x > 0).nonzero()[:, 0]
            ctx.save_for_backward(where, x)
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx, cotangent):
            where, x = ctx.saved_tensors
            return torch.zeros_like(x).index_put((where,), cotangent[where])

    given = torch.tensor([[1.0, -1.0], [1.0, 1.0]])
    with pytest.raises(UnsupportedError, match="another shape for another item") as caught:
        torch.vmap(pullback.complete(Positive, batching=batching).apply)(given)
    assert caught.value.given == "shapes [(1,), (2,)]"


class Looped(torch.autograd.Function):
    """x ** 2, with a decision of Python, so that items run one after the other."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(2 * x if int(x.argmax()) >= 0 else x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return slope * g


def _tangents(f):
    return func.vmap(lambda x: func.jvp(f, (x,), (torch.ones_like(x),))[1])


AROUND_TANGENTS = {
    "jvp": lambda f, x: func.jvp(_tangents(f), (x,), (x,))[1],
    "grad": lambda f, x: func.grad(lambda x: _tangents(f)(x).square().sum())(x),
    "jacfwd": lambda f, x: func.jacfwd(_tangents(f))(x),
    "jacrev": lambda f, x: func.jacrev(_tangents(f))(x),
}


@pytest.mark.parametrize("name", AROUND_TANGENTS)
@pytest.mark.parametrize("batching", ["auto", "loop"])
def test_tangents_of_items_are_differentiated_or_refused(name, batching):
    ask, x = AROUND_TANGENTS[name], torch.tensor([[0.5, 1.0], [2.0, 3.0]], dtype=torch.float64)
    function = pullback.complete(Looped, batching=batching).apply
    try:
        got = ask(function, x)
    except UnsupportedError:
        assert batching == "loop"
        return
    agree(got, ask(torch.square, x))


def _scattered(kept, g):
    (index,) = kept
    return torch.zeros(5, dtype=g.dtype).scatter_add_(0, index, g)


def _by_index(kept, g):
    slope = torch.zeros(5, dtype=g.dtype)
    slope[kept[0]] = g
    return slope


def _of_the_cotangent(kept, g):
    slope = g.new_zeros(5)
    slope[kept[0]] = g
    return slope


def _put(kept, g):
    return torch.zeros(5, dtype=g.dtype).index_put_((kept[0],), g, accumulate=True)


def _of_a_piece(kept, g):
    wide = torch.zeros(5, 1, dtype=g.dtype)
    wide.view(-1).index_add_(0, kept[0], g)
    return wide[:, 0]


def _makes_slopes(rule):
    class Chosen(torch.autograd.Function):
        """The three largest of five numbers; backward writes into zeros that it makes."""

        @staticmethod
        def forward(ctx, x):
            _, index = x.topk(3)
            ctx.save_for_backward(index)
            return x.gather(0, index)

        @staticmethod
        def backward(ctx, g):
            return rule(ctx.saved_tensors, g)

    return Chosen


def _largest(x):
    return x.sort(descending=True).values[:3]


ROWS = torch.tensor([[0.1, 0.7, 0.3, 0.9, 0.2], [0.8, 0.4, 0.6, 0.1, 0.5]], dtype=torch.float64)
BATCHES = {
    "jacrev": lambda f: func.jacrev(f)(ROWS[0]),
    "hessian": lambda f: func.hessian(lambda x: f(x).prod())(ROWS[0]),
    "vmap of grad": lambda f: func.vmap(func.grad(lambda x: f(x).prod()))(ROWS),
    "grad of vmap": lambda f: func.grad(lambda x: func.vmap(f)(x).prod(1).sum())(ROWS),
    "vmap of jacrev": lambda f: func.vmap(func.jacrev(lambda x: f(x).cumsum(0)))(ROWS),
    "vmap of hessian": lambda f: func.vmap(func.hessian(lambda x: f(x).prod()))(ROWS),
}


@pytest.mark.parametrize("rule", [_scattered, _by_index, _of_the_cotangent, _put, _of_a_piece])
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("batching", ["derived", "auto"])
def test_a_batch_is_written_into_what_a_rule_makes(rule, name, batching):
    function = pullback.complete(_makes_slopes(rule), batching=batching).apply
    agree(BATCHES[name](function), BATCHES[name](_largest))


def test_what_a_rule_keeps_for_other_calls_is_no_batch():
    masks = {}

    class Masked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            total = torch.zeros(3, dtype=x.dtype)
            total += x
            if "mask" not in masks:
                masks["mask"] = torch.ones(3, 3, dtype=x.dtype).tril()
            return masks["mask"] @ total

        @staticmethod
        def backward(ctx, g):
            return masks["mask"].mT @ g

    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    agree(func.vmap(pullback.complete(Masked).apply)(torch.stack([x, x])), x.cumsum(0).expand(2, 3))
    agree(pullback.complete(Masked).apply(x), x.cumsum(0))
