"""What works in torch, or is meant by it, works here: one test for each habit of authors."""

import functools
import weakref

import numpy as np
import torch
from torch.autograd import forward_ad

import pullback
from pullback import Function, complete

func = torch.func
ONES = torch.ones(2)


def leaf():
    return torch.ones(2, requires_grad=True)


def published(forward, backward):
    rules = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Published", (torch.autograd.Function,), rules)


def test_a_dirty_input_is_not_saved():
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    twice = complete(published(forward, lambda ctx, g: g * 2))
    x = leaf()
    y = x * 1
    twice.apply(y)
    twice.apply(y)
    y.sum().backward()
    assert x.grad.tolist() == [4, 4]


def test_an_output_of_numpy():
    class Pair(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, np.arange(3)

        @staticmethod
        def backward(ctx, g, _):
            return g * 2

    x = leaf()
    y, numbers = Pair.apply(x)
    y.sum().backward()
    assert isinstance(numbers, np.ndarray)
    assert x.grad.tolist() == [2, 2]
    assert func.grad(lambda x: Pair.apply(x)[0].sum())(ONES).tolist() == [2, 2]


class Product(torch.autograd.Function):
    """A kernel outside of torch; its backward applies the Function itself."""

    @staticmethod
    def forward(ctx, x, a):
        ctx.save_for_backward(x, a)
        return torch.from_numpy(x.detach().numpy() * a.detach().numpy())

    @staticmethod
    def backward(ctx, g):
        x, a = ctx.saved_tensors
        return Product.apply(g, a), Product.apply(g, x)


def test_a_backward_that_applies_its_own_function():
    x, a = (torch.rand(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradgradcheck(complete(Product).apply, (x, a))


def test_dirty_beside_a_jvp():
    class Twice(Function):
        @staticmethod
        def forward(x):
            return x.mul_(2)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_dirty(inputs[0])

        @staticmethod
        def backward(ctx, g):
            return g * 2

        @staticmethod
        def jvp(ctx, tangent):
            return tangent.mul_(2)

    with forward_ad.dual_level():
        y = Twice.apply(forward_ad.make_dual(ONES, ONES.clone()) * 1)
        assert forward_ad.unpack_dual(y).tangent.tolist() == [2, 2]
    _, tangent = func.jvp(lambda x: Twice.apply(x * 1), (ONES,), (ONES,))
    assert tangent.tolist() == [2, 2]


def test_a_vmap_rule_with_keyword_only_arguments_and_one_output():
    class Scaled(Function):
        @staticmethod
        def forward(x, *, factor=2):
            return (x * factor,)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor, None

        @staticmethod
        def vmap(info, in_dims, x, *, factor=2):
            return (x * factor,), in_dims[:1]

    run = func.vmap(lambda x: Scaled.apply(x, factor=3)[0])
    assert run(torch.ones(2, 2)).tolist() == [[3, 3], [3, 3]]


def test_float8_outputs_under_jvp():
    class Quantised(Function):
        @staticmethod
        def forward(ctx, x):
            return x.to(torch.float8_e4m3fn), x * 2

        @staticmethod
        def backward(ctx, g, h):
            return h * 2

    _, tangent = func.jvp(lambda x: Quantised.apply(x)[1], (ONES,), (ONES,))
    assert tangent.tolist() == [2, 2]


def test_rules_that_are_replaced_after_the_first_use():
    original = published(lambda ctx, x: x * 3, lambda ctx, g: g * 3)
    completed = complete(original)
    for factor in (3, 5):
        original.backward = staticmethod(lambda ctx, g, factor=factor: g * factor)
        x = leaf()
        completed.apply(x).sum().backward()
        assert x.grad.tolist() == [factor, factor]


class Asks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w if x.requires_grad else None, g * x if w.requires_grad else None


def test_a_backward_that_asks_a_saved_input_for_requires_grad():
    apply = complete(Asks).apply
    x, w = torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0])
    assert func.jvp(apply, (x, w), (ONES, 0 * ONES))[1].tolist() == [5, 7]
    assert func.vmap(func.grad(apply, (0, 1)))(x, w)[1].tolist() == [2, 3]
    assert func.jacfwd(lambda x: apply(x, w))(x).diagonal().tolist() == [5, 7]


def test_variables_in_a_backward():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    def backward(ctx, g):
        return 3 * torch.autograd.Variable(ctx.saved_tensors[0]) ** 2 * g

    apply = complete(published(forward, backward)).apply
    assert func.jvp(apply, (torch.tensor(2.0),), (torch.tensor(1.0),))[1] == 12


def test_a_wrapper_of_forward_with_defaults_of_its_own():
    def inner(ctx, x, factor=2):
        ctx.factor = factor
        return x * factor

    @functools.wraps(inner)
    def outer(ctx, x, factor=10):
        return inner(ctx, x, factor)

    apply = complete(published(outer, lambda ctx, g: (g * ctx.factor, None))).apply
    assert apply(ONES).tolist() == [10, 10]
    assert func.grad(lambda x: apply(x).sum())(ONES).tolist() == [10, 10]


def test_the_split_form_has_the_defaults_below_its_decorators():
    def inner(x, factor=2):
        return x * factor

    @functools.wraps(inner)
    def outer(x, factor=10):
        return inner(x, factor)

    class Scaled(torch.autograd.Function):
        forward = staticmethod(outer)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor, None

    published_apply, apply = Scaled.apply, complete(Scaled).apply
    assert apply(ONES).tolist() == published_apply(ONES).tolist() == [2, 2]
    assert func.grad(lambda x: apply(x).sum())(ONES).tolist() == [2, 2]


def test_attributes_with_names_that_the_engine_might_use():
    def forward(ctx, x):
        ctx._needs, ctx._saved_for_backward, ctx._dirty = 3.0, 1, ()
        return x * 3

    apply = complete(published(forward, lambda ctx, g: g * ctx._needs)).apply
    assert func.grad(lambda x: apply(x).sum())(ONES).tolist() == [3, 3]


def test_complete_keeps_no_more_than_the_author_does():
    def forward(ctx, x):
        ctx.save_for_backward(x > 0)
        return x * 1

    function = complete(published(forward, lambda ctx, g: g * ctx.saved_tensors[0]))
    z = leaf() * 2
    alive = weakref.ref(z)
    y = function.apply(z)
    z.detach().add_(1)
    del z
    assert alive() is None
    y.sum().backward()


def test_an_output_that_is_returned_twice_has_both_cotangents():
    def forward(ctx, x):
        y = x * 2
        return y, y

    apply = complete(published(forward, lambda ctx, g, h: 2 * (g + h))).apply
    x = leaf()
    first, second = apply(x)
    (first + 2 * second).sum().backward()
    assert x.grad.tolist() == [6, 6]
    assert pullback.complete(Asks) is complete(Asks)
