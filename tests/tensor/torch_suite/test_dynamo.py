"""What torch holds its custom Functions to under torch.compile: ours are held to the same.

On the subjects of the autograd.Function tests of Dynamo.
"""
# ruff: noqa: PLW0108 - what is compiled is a frame that applies the Function

import enum

import pytest
import torch
from tests.tensor.torch_suite.ways import both
from torch.autograd.function import once_differentiable

# Dynamo's own doing.
pytestmark = [
    pytest.mark.sampled(3),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated"),
]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def same_as_eager(call, *shapes):
    torch.manual_seed(0)
    values = [torch.rand(shape or (3,)) + 0.5 for shape in shapes or ((3,),)]
    found = []
    for run in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        xs = [v.clone().requires_grad_() for v in values]
        ys = run(*xs)
        ys = ys if isinstance(ys, tuple) else (ys,)
        total = sum(y.cos().sum() for y in ys if y.requires_grad)
        found.append((ys, torch.autograd.grad(total, xs)))
    torch.testing.assert_close(found[1], found[0])


def two(base):
    class Two(base):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y, x + y

        @staticmethod
        def backward(ctx, g, h):
            x, y = ctx.saved_tensors
            return g * y + h, g * x + h

    return Two


@both(two)
def test_two_inputs_and_outputs(function):
    same_as_eager(lambda x, y: function.apply(x, y), (3,), (3,))
    same_as_eager(lambda x, y: function.apply(x, y)[0], (3,), (3,))


@both(two)
def test_bound_before(function):
    apply = function.apply
    same_as_eager(lambda x, y: apply(x * 2, y)[1] * 3, (3,), (3,))


def attributes(base):
    class Attributes(base):
        @staticmethod
        def forward(ctx, x, flag, words, size=None):
            ctx.flag, ctx.count, ctx.shape = flag, len(words), x.shape
            ctx.cut = x.size(0)
            ctx.save_for_backward(x)
            return x.exp() if flag else x.sin()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            result = g * (x.exp() if ctx.flag else x.cos())
            return result.reshape(ctx.shape)[: ctx.cut], None, None, None

    return Attributes


@both(attributes)
@pytest.mark.parametrize("flag", [True, False])
def test_what_is_kept_on_the_context(function, flag):
    same_as_eager(lambda x: function.apply(x, flag, ["a", "b"]))
    same_as_eager(lambda x: function.apply(x, flag, ("a",), torch.Size([3])))


def saves_twice(base):
    class SavesTwice(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.save_for_backward(x, x * 2)
            return x * x

        @staticmethod
        def backward(ctx, g):
            _, twice = ctx.saved_tensors
            return twice * g

    return SavesTwice


@both(saves_twice)
def test_the_last_save_counts(function):
    same_as_eager(lambda x: function.apply(x))


def smuggles(base):
    class Smuggles(base):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = x * 2
            ctx.more = [x.sin(), {"c": x.cos()}]
            return x * x + ctx.more[0]

        @staticmethod
        def backward(ctx, g):
            return g * (ctx.kept + ctx.more[1]["c"])

    return Smuggles


@both(smuggles)
def test_tensors_on_the_context(function):
    same_as_eager(lambda x: function.apply(x))


def marks(base):
    class Marks(base):
        @staticmethod
        def forward(ctx, x):
            order = x.argsort()
            ctx.mark_non_differentiable(order)
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(order)
            return x[order], order

        @staticmethod
        def backward(ctx, g, nothing):
            (order,) = ctx.saved_tensors
            return torch.zeros_like(g).index_put((order,), g)

    return Marks


@both(marks)
def test_an_output_that_is_not_differentiable(function):
    same_as_eager(lambda x: function.apply(x)[0] * 2)


class Mode(enum.IntEnum):
    DOUBLE = 2
    TRIPLE = 3


def takes_enum(base):
    class TakesEnum(base):
        @staticmethod
        def forward(ctx, x, mode):
            ctx.mode = mode
            return x * int(mode)

        @staticmethod
        def backward(ctx, g):
            return g * int(ctx.mode), None

    return TakesEnum


@both(takes_enum)
def test_an_enum(function):
    same_as_eager(lambda x: function.apply(x, Mode.TRIPLE))


def once(base):
    class Once(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.exp()

    return Once


@both(once)
def test_once_differentiable(function):
    same_as_eager(lambda x: function.apply(x))


def calls_another(base):
    inner = two(base)

    class Outer(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3 * inner.apply(x, x)[0]

    return Outer


@both(calls_another)
def test_a_backward_that_applies_another(function):
    same_as_eager(lambda x: function.apply(x))


def split(base):
    class Split(base):
        @staticmethod
        def forward(x, n=2):
            return x**n, x.max()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.n = inputs[1] if len(inputs) > 1 else 2
            ctx.save_for_backward(inputs[0])
            ctx.mark_non_differentiable(output[1])

        @staticmethod
        def backward(ctx, g, nothing):
            (x,) = ctx.saved_tensors
            return g * ctx.n * x ** (ctx.n - 1), None

    return Split


@both(split)
def test_the_split_form_with_a_default(function):
    same_as_eager(lambda x: function.apply(x, 3)[0])


def changes_strides(base):
    class Strides(base):
        @staticmethod
        def forward(ctx, x):
            return x.t() * 2

        @staticmethod
        def backward(ctx, g):
            assert g.stride() is not None
            return (g * 2).t()

    return Strides


@both(changes_strides)
def test_strides(function):
    same_as_eager(lambda x: function.apply(x), (3, 4))


def views(base):
    class View(base):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return g * 3

    return View


@both(views)
def test_a_view_of_the_input(function):
    same_as_eager(lambda x: function.apply(x) + 1)


def module_inside(base):
    class Quadratic(base):
        @staticmethod
        def forward(ctx, x, weight, bias=None):
            ctx.save_for_backward(x, weight)
            ctx.has_bias = bias is not None
            y = x @ weight.t()
            return y if bias is None else y + bias

        @staticmethod
        def backward(ctx, g):
            x, weight = ctx.saved_tensors
            gx = gw = gb = None
            if ctx.needs_input_grad[0]:
                gx = g @ weight
            if ctx.needs_input_grad[1]:
                gw = g.t() @ x
            if ctx.has_bias and ctx.needs_input_grad[2]:
                gb = g.sum(0)
            return gx, gw, gb

    return Quadratic


@both(module_inside)
def test_a_linear_layer(function):
    same_as_eager(lambda x, w, b: function.apply(x, w, b), (2, 3), (4, 3), (4,))
    same_as_eager(lambda x, w: function.apply(x, w), (2, 3), (4, 3))
    weight = torch.rand(4, 3)
    same_as_eager(lambda x: function.apply(x, weight), (2, 3))


def in_mixed_precision(base):
    class Mixed(base):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.exp()

    return Mixed


@both(in_mixed_precision)
def test_custom_fwd_and_bwd(function):
    same_as_eager(lambda x: function.apply(x))


def in_a_loop(base):
    class Step(base):
        @staticmethod
        def forward(ctx, x, k):
            ctx.k = k
            return x * k

        @staticmethod
        def backward(ctx, g):
            return g * ctx.k, None

    return Step


@both(in_a_loop)
def test_a_loop_with_other_numbers(function):
    def run(x):
        for k in range(1, 4):
            x = function.apply(x, float(k)).sin()
        return x

    same_as_eager(run)
