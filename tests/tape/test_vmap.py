"""A batch equals a loop, in value and gradient, whatever the Function has of a rule."""

import asyncio
import math

import pytest

from pullback.errors import ArgumentError, ArgumentTypeError, DefinitionError, UnsupportedError
from pullback.tape import Function, Variable, grad, jvp, sin, vmap


class Loop(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_variables
        return g * y, g * x


calls = []


class Rule(Loop):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def vmap(info, in_dims, x, y):
        calls.append((info.batch_size, in_dims))
        rows = [
            (x[i] if in_dims[0] == 0 else x) * (y[i] if in_dims[1] == 0 else y)
            for i in range(info.batch_size)
        ]
        from pullback.tape import stack

        return stack(rows), 0


class Generated(Loop):
    generate_vmap_rule = True


@pytest.mark.parametrize("function", [Loop, Rule, Generated])
@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0)])
def test_a_batch_equals_a_loop(function, in_dims):
    xs = Variable([1.0, 2.0, 3.0], requires_grad=True)
    y = Variable(5.0, requires_grad=True)
    ys = Variable([4.0, 5.0, 6.0], requires_grad=True)
    args = [xs if in_dims[0] == 0 else y, ys if in_dims[1] == 0 else y]
    out = vmap(lambda a, b: sin(function.apply(a, b)), in_dims=in_dims)(*args)
    first = [args[0][i] if in_dims[0] == 0 else args[0] for i in range(3)]
    second = [args[1][i] if in_dims[1] == 0 else args[1] for i in range(3)]
    loop = [sin(Loop.apply(a, b)) for a, b in zip(first, second, strict=True)]
    assert out.data == [v.data for v in loop]
    seed = [1.0, -2.0, 0.5]
    batched = grad(out, args, Variable(seed))
    looped = grad(loop, args, [Variable(s) for s in seed])
    for a, b in zip(batched, looped, strict=True):
        assert a.data == pytest.approx(b.data)


def test_the_rule_of_an_author_is_used_once_for_the_batch():
    calls.clear()
    vmap(Rule.apply, in_dims=(0, None))([1.0, 2.0], Variable(3.0))
    assert calls == [(2, (0, None))]


def test_nested_batches():
    rows = Variable([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    out = vmap(vmap(lambda x: x * x))(rows)
    assert out.data == [[1.0, 4.0], [9.0, 16.0]]
    out.backward(Variable([[1.0, 1.0], [1.0, 1.0]]))
    assert rows.grad.data == [[2.0, 4.0], [6.0, 8.0]]
    outer = vmap(lambda a: vmap(lambda b: a * b)([10.0, 20.0]))([1.0, 2.0])
    assert outer.data == [[10.0, 20.0], [20.0, 40.0]]


def test_derivatives_inside_a_batch_and_around_it():
    xs = [Variable(v, requires_grad=True) for v in (1.0, 2.0)]
    slopes = vmap(lambda x: grad(sin(x) * x, x, create_graph=True)[0])(xs)
    loop = [grad(sin(x) * x, x, create_graph=True)[0] for x in xs]
    assert slopes.data == [v.data for v in loop]
    _, changes = vmap(lambda x, t: jvp(lambda v: v * v, (x,), (t,)))([1.0, 2.0], [1.0, 3.0])
    assert changes.data == [2.0, 12.0]
    squares = vmap(lambda v: v * v)
    _, change = jvp(squares, (Variable([1.0, 2.0]),), (Variable([1.0, 3.0]),))
    assert change.data == [2.0, 12.0]


def test_a_batch_has_the_gradients_of_its_items_and_takes_no_hook():
    def slope(x):
        (x * x).backward()
        return x.grad

    items = [Variable(3.0, requires_grad=True), Variable(2.0, requires_grad=True)]
    assert vmap(slope)(items).data == [6.0, 4.0]
    for use in (
        lambda x: x.register_hook(print), lambda x: (x * x).retain_grad(),
        lambda x: (x * x).backward(inputs=[x]),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match="a batch inside vmap"):
            vmap(use)(items)


@pytest.mark.parametrize(("size", "dim"), [(1, 0), (2, 1), (2, "0")])
def test_a_rule_that_gives_another_size_or_dimension(size, dim):
    class Other(Rule):
        @staticmethod
        def vmap(info, in_dims, x, y):
            return x[:size], dim

    with pytest.raises(DefinitionError, match="another size, or along another dimension"):
        vmap(Other.apply)([1.0, 2.0], [1.0, 2.0])


@pytest.mark.parametrize("dims", [1, "0", (0, 2), [1], False])
def test_a_dimension_that_there_is_not_is_refused_before_any_call(dims):
    for name in ("in_dims", "out_dims"):
        with pytest.raises(ArgumentTypeError, match=f"vmap cannot use .* {name}"):
            vmap(sin, **{name: dims})


def test_there_is_one_dimension_for_each_argument_and_output():
    assert vmap(lambda x, y: x * y, in_dims=[0, None])([1.0, 2.0], 3.0).data == [3.0, 6.0]
    assert vmap(sin, out_dims=(0,))([0.0, 0.0]).data == [0.0, 0.0]
    for name in ("in_dims", "out_dims"):
        for dims in ((), (0, 0)):
            with pytest.raises(ArgumentError, match=f"not one of the {name} for each"):
                vmap(sin, **{name: dims})([1.0])
    with pytest.raises(ArgumentError, match="out_dims is None for an output that is a batch"):
        vmap(sin, out_dims=(None,))([1.0])


def test_an_awaited_call_in_a_batch_of_batches():
    class Twice(Function):
        @staticmethod
        def forward(ctx, x):
            return Variable(x.data * 2)

        @staticmethod
        def backward(ctx, g):
            return g * 2

    out = vmap(vmap(lambda x: asyncio.run(Twice.aapply(x))))([[1.0, 2.0], [3.0, 4.0]])
    assert out.data == [[2.0, 4.0], [6.0, 8.0]]


def test_a_batch_of_lists_is_gone_through_as_one_list():
    rows = [Variable([1.0, 2.0]), Variable([3.0, 4.0])]
    assert vmap(lambda row: [a * 2 for a in row][1])(rows).data == [4.0, 8.0]
    assert vmap(lambda row: row[len(row) - 1])(rows).data == [2.0, 4.0]
    named = [Variable({"a": 1.0, "b": 2.0})] * 2
    assert vmap(lambda row: row[list(row)[1]])(named).data == [2.0, 2.0]


class Entries(Function):
    @staticmethod
    def forward(ctx, row):
        return tuple(map(Variable, row.data))


def test_items_of_different_lengths_are_no_one_list():
    rows = [Variable([1.0, 2.0]), Variable([3.0])]
    for of in (len, list, Entries.apply):
        with pytest.raises(UnsupportedError, match="differ"):
            vmap(lambda row, of=of: Variable(of(row)))(rows)


def test_the_rule_for_a_batch_may_be_awaited():
    class Doubled(Rule):
        @staticmethod
        async def vmap(info, in_dims, x, y):
            await asyncio.sleep(0)
            return x, 0

    assert vmap(Doubled.apply)([1.0, 2.0], [3.0, 4.0]).data == [1.0, 2.0]


def test_a_batch_of_batches_is_gone_through_item_by_item():
    rows = Variable([[[1.0, 2.0], [3.0, 4.0]]], requires_grad=True)
    out = vmap(vmap(vmap(lambda x: x * x)))(rows)
    assert out.data == [[[1.0, 4.0], [9.0, 16.0]]]
    named = Variable([[{"a": 1.0}, {"a": 2.0}]])
    assert vmap(vmap(lambda row: row[next(iter(row))]))(named).data == [[1.0, 2.0]]


def test_the_derivative_of_each_item_where_a_rule_makes_them_together():
    xs = [Variable(v, requires_grad=True) for v in (1.0, 2.0)]
    slopes = vmap(lambda x, y: grad(Rule.apply(x, y), x)[0])(xs, [3.0, 4.0])
    assert slopes.data == [3.0, 4.0]


def test_the_zeros_of_a_float_are_two_items():
    class Sign(Function):
        @staticmethod
        def forward(x):
            return Variable(math.copysign(1.0, x.data))

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return g

    assert vmap(Sign.apply)([0.0, -0.0, 0.0]).data == [1.0, -1.0, 1.0]
