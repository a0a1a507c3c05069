"""What published code does and torch takes: no less of it works with our Function or completed."""

import functools
import gc
import threading
import weakref

import numpy as np
import pytest
import torch
from tests.tensor.helpers import agree
from tests.versions import in_threads, refused_before
from torch.autograd import Variable
from torch.autograd.function import once_differentiable

import pullback
from pullback.errors import PullbackError

func = torch.func


def leaf(*values):
    return torch.tensor(values or (0.5, 1.5, 2.5), dtype=torch.float64, requires_grad=True)


def both(make):
    """The Function that ``make`` writes on a base: ours, and torch's completed."""
    own = make(pullback.Function)
    third = pullback.complete(make(torch.autograd.Function))
    return pytest.mark.parametrize("function", [own, third], ids=["Function", "complete"])


def returns_an_array(base):
    class ReturnsAnArray(base):
        @staticmethod
        def forward(ctx, x):
            return x * 2, np.arange(3), "text"

        @staticmethod
        def backward(ctx, g, *rest):
            return g * 2

    return ReturnsAnArray


@refused_before("2.12", "a text among the outputs", match="tensors or ints|run_forward")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@both(returns_an_array)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_an_output_that_is_an_array_compiles_as_published(function, backend):
    torch._dynamo.reset()
    x = leaf()
    y = torch.compile(lambda x: function.apply(x)[0], fullgraph=True, backend=backend)(x)
    agree(torch.autograd.grad(y.sum(), x)[0], torch.full((3,), 2.0, dtype=torch.float64))


@both(returns_an_array)
def test_an_output_that_is_an_array(function):
    x = leaf()
    y, array, text = function.apply(x)
    assert array.tolist() == [0, 1, 2]
    assert text == "text"
    agree(torch.autograd.grad(y.sum(), x)[0], torch.full_like(x, 2))
    agree(func.grad(lambda x: function.apply(x)[0].sum())(x.detach()), torch.full_like(x, 2))


def applies_itself(base):
    class Sine(base):
        """Its derivative is itself, shifted, as an LPC filter's is."""

        @staticmethod
        def forward(ctx, x, shift):
            ctx.save_for_backward(x)
            ctx.shift = shift
            return torch.sin(x + shift)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * Sine.apply(x, ctx.shift + torch.pi / 2), None

    return Sine


@both(applies_itself)
def test_a_backward_that_applies_its_own_function(function):
    x = leaf()
    assert torch.autograd.gradcheck(lambda x: function.apply(x, 0.0), x)
    assert torch.autograd.gradgradcheck(lambda x: function.apply(x, 0.0), x)
    plain = x.detach()
    agree(func.hessian(lambda x: function.apply(x, 0.0).sum())(plain), -plain.sin().diag())


def filters(base):
    class Filter(base):
        """An all-pole filter in numpy; its backward is the same filter run backwards in time."""

        @staticmethod
        def forward(ctx, x, a):
            y = x.detach().numpy().copy()
            for t in range(1, len(y)):
                y[t] -= a.detach().numpy() * y[t - 1]
            out = torch.from_numpy(y)
            ctx.save_for_backward(a, out)
            return out

        @staticmethod
        def backward(ctx, g):
            a, y = ctx.saved_tensors
            gx = Filter.apply(g.flip(0), a).flip(0)
            shifted = torch.cat([y.new_zeros(1), y[:-1]])
            return gx, -(gx * shifted).sum()

    return Filter


@both(filters)
def test_a_filter_differentiated_twice_as_published(function):
    a = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    x = leaf(0.3, -0.2, 0.9, 0.1)
    assert torch.autograd.gradcheck(function.apply, (x, a))
    assert torch.autograd.gradgradcheck(function.apply, (x, a))


def asks_requires_grad(base):
    class Asks(base):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return (
                2 * x * y * g if x.requires_grad else None,
                x * x * g if y.requires_grad else None,
            )

    return Asks


def right_or_refused(ask, function, formula, *args):
    want = ask(formula, *args)
    try:
        got = ask(function, *args)
    except PullbackError:
        return
    agree(got, want)


ASKED = {
    "jvp": lambda f, *args: func.jvp(f, args, args)[1],
    "jacfwd": lambda f, *args: func.jacfwd(f, (0, 1))(*args),
    "grad": lambda f, *args: func.grad(lambda *a: f(*a).sum(), (0, 1))(*args),
    "hessian": lambda f, *args: func.hessian(lambda *a: f(*a).sum(), (0, 1))(*args),
    "vmap": lambda f, *args: func.vmap(f)(*(torch.stack([a, a + 1]) for a in args)),
    "vmap of grad": lambda f, *args: func.vmap(func.grad(lambda *a: f(*a).sum(), (0, 1)))(
        *(torch.stack([a, a + 1]) for a in args)
    ),
}
every_ask = pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)


@both(asks_requires_grad)
@every_ask
def test_a_backward_that_asks_a_saved_input_for_requires_grad(function, ask):
    x, y = leaf().detach(), leaf(3.0, 2.0, 1.0).detach()
    right_or_refused(ask, function.apply, lambda x, y: x * x * y, x, y)


def wraps_variables(base):
    class Wraps(base):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            x, y = Variable(x), Variable(y.data)
            return 2 * x * y * g, x * x * g

    return Wraps


@both(wraps_variables)
@every_ask
def test_variable_in_backward(function, ask):
    x, y = leaf().detach(), leaf(3.0, 2.0, 1.0).detach()
    right_or_refused(ask, function.apply, lambda x, y: x * x * y, x, y)


def wraps_what_nothing_used(base):
    class Wraps(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * Variable(x) ** 2 * Variable(Variable(g))

    return Wraps


def _twice(f, x):
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)[0]


OF_ONE = {
    "jvp": lambda f, x: func.jvp(f, (x,), (x,))[1],
    "twice": _twice,
    "grad of grad": lambda f, x: func.grad(lambda x: func.grad(lambda x: f(x).sum())(x).sum())(x),
    "hessian": lambda f, x: func.hessian(lambda x: f(x).sum())(x),
    "jvp of grad": lambda f, x: func.jvp(func.grad(lambda x: f(x).sum()), (x,), (x,))[1],
}


@both(wraps_what_nothing_used)
@pytest.mark.parametrize("ask", OF_ONE.values(), ids=OF_ONE)
def test_variable_of_an_input_and_a_cotangent_that_nothing_used_before(function, ask):
    x = leaf().detach()
    agree(ask(function.apply, x), ask(lambda x: x**3, x))


def computes_in_float32(base):
    class Computes(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return (x.float() ** 3).to(x.dtype)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return (3 * x.float() ** 2 * g.float()).to(g.dtype)

    return Computes


@both(computes_in_float32)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rules_that_compute_in_float32_whatever_they_are_given(function, dtype):
    x, v = leaf().detach().to(dtype), leaf(1.0, 0.5, 0.25).detach().to(dtype)
    _, tangent = func.jvp(function.apply, (x,), (v,))
    torch.testing.assert_close(tangent, 3 * x**2 * v, rtol=0.02, atol=1e-5)


def clips_in_float32(base):
    class Clips(base):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return (g.float() + 1e-3 * g.float().sin()).to(g.dtype)

    return Clips


@both(clips_in_float32)
def test_a_small_part_that_is_not_linear_shows_in_float32(function):
    # In a coarser dtype it is below what that rounds away: there the map is linear.
    x = leaf().detach().float()
    with pytest.raises(PullbackError, match="not linear"):
        func.jvp(function.apply, (x,), (x,))


def relies_on_once(base):
    class Once(base):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * x * y

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            assert not g.requires_grad
            gx, gy = torch.empty_like(x), torch.empty_like(y)
            torch.mul(x * y * 2, g, out=gx)  # legal below once_differentiable alone
            torch.mul(x * x, g, out=gy)
            return gx, gy

    return Once


@both(relies_on_once)
@every_ask
def test_a_backward_that_relies_on_once_differentiable(function, ask):
    x, y = leaf().detach(), leaf(3.0, 2.0, 1.0).detach()
    right_or_refused(ask, function.apply, lambda x, y: x * x * y, x, y)


def other_defaults(rule):
    @functools.wraps(rule)
    def wrapper(ctx, x, factor=10.0):
        return rule(ctx, x, factor)

    return wrapper


def decorated(base):
    class Decorated(base):
        @staticmethod
        @other_defaults
        def forward(ctx, x, factor=2.0):
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor, None

    return Decorated


@both(decorated)
def test_the_defaults_are_those_of_the_wrapper_that_is_called(function):
    x = leaf(1.0)
    y = function.apply(x)
    assert y.item() == 10.0
    assert torch.autograd.grad(y, x)[0].item() == 10.0
    assert function.apply(x, 3.0).item() == 3.0


def replaceable(base):
    class Replaceable(base):
        @staticmethod
        def forward(ctx, x):
            return x * 3

        @staticmethod
        def backward(ctx, g):
            return g * 3

    return Replaceable


def test_rules_that_are_replaced_after_the_first_use():
    function = replaceable(pullback.Function)
    x = leaf(1.0)
    function.apply(x)
    function.forward = staticmethod(lambda ctx, x: x * 5)
    function.backward = staticmethod(lambda ctx, g: g * 5)
    y = function.apply(x)
    assert y.item() == 5.0
    assert torch.autograd.grad(y, x)[0].item() == 5.0
    assert func.grad(lambda x: function.apply(x).sum())(x.detach()).item() == 5.0


def test_rules_of_an_original_that_are_replaced_after_it_was_completed():
    original = replaceable(torch.autograd.Function)
    function = pullback.complete(original)
    x = leaf(1.0)
    function.apply(x)
    original.forward = staticmethod(lambda ctx, x: x * 5)
    original.backward = staticmethod(lambda ctx, g: g * 5)
    y = pullback.complete(original).apply(x)
    assert y.item() == 5.0
    assert torch.autograd.grad(y, x)[0].item() == 5.0


def private_names(base):
    class Private(base):
        @staticmethod
        def forward(ctx, x):
            ctx._needs = ctx._saved = ctx._dirty = ctx._by_argument = ctx._materialize = x.numel()
            ctx.call = ctx.saved = ctx.needs = ctx.inputs = ctx.kept = 7
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            assert ctx._needs == ctx._dirty == ctx._by_argument == ctx._materialize == 3
            assert ctx.call == ctx.saved == ctx.needs == ctx.inputs == 7
            assert ctx.needs_input_grad == (True,)
            return 2 * x * g

    return Private


@both(private_names)
def test_any_attribute_may_be_set_on_the_context(function):
    x = leaf()
    agree(torch.autograd.grad(function.apply(x).sum(), x)[0], 2 * x.detach())
    agree(func.hessian(lambda x: function.apply(x).sum())(x.detach()), 2 * torch.eye(3).double())


def keyword_batching(base):
    class Scaled(base):
        @staticmethod
        def forward(x, *, factor=2.0):
            return x * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor, None

        @staticmethod
        def vmap(info, in_dims, x, *, factor=2.0):
            return Scaled.apply(x, factor=factor), in_dims[0]

    return Scaled


def test_a_vmap_rule_with_keyword_only_arguments():
    function = keyword_batching(pullback.Function)
    x = leaf().detach()
    agree(func.vmap(lambda t: function.apply(t, factor=5.0))(x), x * 5)
    agree(func.vmap(function.apply)(x), x * 2)


def one_tuple_batching(base):
    class One(base):
        @staticmethod
        def forward(x):
            return (x * 2,)

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return g * 2

        @staticmethod
        def vmap(info, in_dims, x):
            return One.apply(x), in_dims

    return One


@both(one_tuple_batching)
def test_a_vmap_rule_of_a_tuple_of_one(function):
    x = leaf().detach()
    (y,) = func.vmap(function.apply)(x)
    agree(y, x * 2)


def bad_batching(base):
    class Bad(one_tuple_batching(base)):
        @staticmethod
        def vmap(info, in_dims, x):
            return x * 2

    return Bad


@both(bad_batching)
def test_a_vmap_rule_that_returns_one_value_is_refused_by_name(function):
    with pytest.raises(PullbackError, match="Bad"):
        func.vmap(function.apply)(leaf().detach())


def eight_bits(base):
    class Cast(base):
        @staticmethod
        def forward(ctx, x):
            return x.to(torch.float8_e4m3fn), x * 2

        @staticmethod
        def backward(ctx, g8, g):
            return g * 2

    return Cast


@both(eight_bits)
def test_outputs_of_eight_bits_in_forward_mode(function):
    x = torch.tensor([1.0, 2.0])

    def second(x):
        return function.apply(x)[1]

    try:
        _, tangent = func.jvp(second, (x,), (x,))
    except PullbackError:
        return
    agree(tangent, 2 * x)


def one_of_eight_bits(base):
    class Cast(base):
        @staticmethod
        def forward(ctx, x):
            return x.to(torch.float8_e5m2)

        @staticmethod
        def backward(ctx, g):
            return g.to(torch.float32)

    return Cast


@both(one_of_eight_bits)
def test_a_cast_to_eight_bits_has_a_tangent(function):
    x = torch.tensor([1.0, 2.0])
    _, tangent = func.jvp(function.apply, (x,), (x / 4,))
    agree(tangent.float(), x / 4)


def cube(base):
    class Cube(base):
        @staticmethod
        def forward(ctx, x):
            square = x * x
            ctx.save_for_backward(square)
            return square * x

        @staticmethod
        def backward(ctx, g):
            (square,) = ctx.saved_tensors
            return 3 * square * g

    return Cube


@both(cube)
def test_what_is_batched_is_not_run_item_by_item(function):
    calls = []
    forward = function.forward
    function.forward = staticmethod(lambda *args: (calls.append(1), forward(*args))[1])
    x = torch.rand(1000, 2)
    agree(func.vmap(function.apply)(x), x**3)
    assert len(calls) < 5


def test_item_by_item_is_said_or_refused():
    class Branching(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2 if x.sum() > 0 else x

        @staticmethod
        def backward(ctx, g):
            return g * 2

    function = pullback.complete(Branching)
    with pytest.warns(UserWarning, match=r"Branching.*item by item"):
        func.vmap(function.apply)(torch.rand(1000, 2))
    asked = pullback.complete(Branching, batching="loop")
    func.vmap(asked.apply)(torch.rand(3, 2))  # said by the caller, so no warning: it is an error


def test_completed_classes_are_freed():
    def once():
        original = cube(torch.autograd.Function)
        function = pullback.complete(original)
        x = leaf()
        torch.autograd.grad(function.apply(x).sum(), x)
        func.hessian(lambda x: function.apply(x).sum())(x.detach())
        return weakref.ref(original), weakref.ref(function)

    gc.freeze()  # what was made before is looked at no more: with all of torch that takes seconds
    references = once()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_functions_that_are_defined_in_a_loop_are_freed():
    def once():
        function = cube(pullback.Function)
        function.apply(leaf())
        return weakref.ref(function)

    gc.freeze()  # what was made before is looked at no more: with all of torch that takes seconds
    reference = once()
    gc.collect()
    assert reference() is None


def test_vjp_called_as_such_is_backward():
    for function in (cube(pullback.Function), pullback.complete(cube(torch.autograd.Function))):

        class Context:
            saved_tensors = (torch.tensor(4.0),)

        assert function.vjp(Context, torch.tensor(1.0)) == 12
        assert function.backward(Context, torch.tensor(1.0)) == 12

    class Written(pullback.Function):
        @staticmethod
        def forward(x):
            return x

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def vjp(ctx, g):
            return g * 7

    assert Written.backward(None, 1) == Written.vjp(None, 1) == 7


@in_threads
def test_threads_apply_one_function():
    function = pullback.complete(cube(torch.autograd.Function))
    failed = []
    # Not hessian: levels of forward mode are one for all threads, in torch too.
    twice = func.jacrev(func.jacrev(lambda x: function.apply(x).sum()))

    def work(seed):
        try:
            x = torch.rand(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            for _ in range(10):
                agree(twice(x), (6 * x).diag())
        except BaseException as error:  # a thread has no other way to tell
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


# What each makes of x and of a tensor does not depend on the values of x.
LIKE_ANOTHER = {
    "to": lambda mask, x: mask.to(x),
    "to, by name": lambda mask, x: mask.to(tensor=x),
    "type_as": lambda mask, x: mask.type_as(x),
    "view_as": lambda mask, x: mask.double().view_as(x),
    "reshape_as": lambda mask, x: mask.double().reshape_as(x),
    "expand_as": lambda mask, x: mask.double()[:1].expand_as(x),
}


@pytest.mark.parametrize("like", LIKE_ANOTHER.values(), ids=LIKE_ANOTHER)
@pytest.mark.parametrize("base", [pullback.Function, torch.autograd.Function])
def test_a_mask_that_takes_the_dtype_or_the_shape_of_an_input(base, like):
    class Masked(base):
        @staticmethod
        def forward(ctx, x):
            ctx.mask = like(x > 1, x)
            ctx.save_for_backward(x)
            return x * x * ctx.mask

        @staticmethod
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * ctx.mask * g

    function = pullback.complete(Masked)
    x = leaf().detach()
    expected = torch.diag(2 * like(x > 1, x))
    assert torch.equal(func.hessian(lambda x: function.apply(x).sum())(x), expected)
    first = torch.autograd.grad(function.apply(y := leaf()).sum(), y, create_graph=True)[0]
    assert torch.equal(torch.autograd.grad(first.sum(), y)[0], expected.diagonal())


@pytest.mark.parametrize("like", ["to", "type_as", "view_as", "reshape_as", "expand_as"])
@both(lambda base: type("Cubes", (base,), {
    "forward": staticmethod(lambda ctx, x, name: (
        ctx.save_for_backward(x, getattr(x.detach(), name)(x)), x**3)[1]),
    "backward": staticmethod(lambda ctx, g: (
        3 * g * ctx.saved_tensors[0] * ctx.saved_tensors[1], None)),
}))  # fmt: skip
def test_what_takes_the_form_of_another_keeps_its_own_derivative(function, like):
    x = leaf().detach()
    found = func.hessian(lambda x: function.apply(x, like).sum())(x)
    assert torch.allclose(found, torch.diag(6 * x))
