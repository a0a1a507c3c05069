"""`complete` of operators of torch.library, under every transform."""

import numpy as np
import pytest
import torch
from tests.tensor.helpers import agree, weighted

import pullback
from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError

LIBRARY = torch.library.Library("pullback_tests", "FRAGMENT")
NO_RULE = "ignore:There is a performance drop because we have not yet implemented the batching"


@torch.library.custom_op("pullback_tests::scale", mutates_args=())
def scale(x: torch.Tensor, y: torch.Tensor, power: float = 2.0, *, factor: int = 1) -> torch.Tensor:
    """y times factor times x to a power, in numpy."""
    return torch.from_numpy(np.asarray(x.numpy() ** power * y.numpy() * factor))


@scale.register_fake
def _(x, y, power=2.0, *, factor=1):
    return torch.empty_like(x)


def scale_setup(ctx, inputs, keyword_only_inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.power, ctx.factor = inputs[2], keyword_only_inputs["factor"]


def scale_backward(ctx, cotangent):
    x, y = ctx.saved_tensors
    to_x = ctx.power * x ** (ctx.power - 1) * y if ctx.needs_input_grad[0] else None
    to_y = x**ctx.power if ctx.needs_input_grad[1] else None
    scaled = [None if g is None else g * cotangent * ctx.factor for g in (to_x, to_y)]
    return (*scaled, None)


scale.register_autograd(scale_backward, setup_context=scale_setup)


@torch.library.custom_op("pullback_tests::exponential", mutates_args=())
def exponential(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.exp(x.numpy()))


@exponential.register_fake
def _(x):
    return torch.empty_like(x)


def exponential_setup(ctx, inputs, output):
    ctx.save_for_backward(output * 2)  # computed here, of the output: a residual


exponential.register_autograd(
    lambda ctx, cotangent: ctx.saved_tensors[0] / 2 * cotangent, setup_context=exponential_setup
)


@torch.library.custom_op("pullback_tests::sine", mutates_args=())
def sine(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.asarray(np.sin(x.numpy())))


@torch.library.custom_op("pullback_tests::sine_backward", mutates_args=())
def sine_backward(x: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.asarray(np.cos(x.numpy()) * cotangent.numpy()))


def keep_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


sine.register_autograd(
    lambda ctx, cotangent: sine_backward(*ctx.saved_tensors, cotangent), setup_context=keep_inputs
)


def sine_second(ctx, weight):
    x, cotangent = ctx.saved_tensors
    return -x.sin() * cotangent * weight, x.cos() * weight


LIBRARY.define("sum_and_scale(Tensor[] parts, float factor) -> (Tensor[], Tensor)")
LIBRARY.impl(
    "sum_and_scale",
    lambda parts, factor: ([part * factor for part in parts], torch.stack(parts).sum(0)),
    "CompositeExplicitAutograd",
)
SEEN = []


def sum_and_scale_backward(ctx, scaled, total):
    SEEN.append(ctx.needs_input_grad)
    return [cotangent * ctx.factor + total for cotangent in scaled], None


torch.library.register_autograd(
    "pullback_tests::sum_and_scale",
    sum_and_scale_backward,
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
    lib=LIBRARY,
)
LIBRARY.define("composite(Tensor x) -> Tensor")
LIBRARY.impl("composite", lambda x: x.sin() * x, "CompositeImplicitAutograd")
LIBRARY.define("without_rule(Tensor x) -> Tensor")
LIBRARY.impl("without_rule", lambda x: x * x, "CompositeExplicitAutograd")
LIBRARY.define("by_hand(Tensor x) -> Tensor")
LIBRARY.impl("by_hand", lambda x: x * x, "CompositeExplicitAutograd")
LIBRARY.impl("by_hand", lambda x: x * x, "Autograd")
LIBRARY.define("writes(Tensor(a!) x) -> ()")
LIBRARY.define("several(Tensor x) -> Tensor")
LIBRARY.define("several.number(float x) -> float")


def scale_in_torch(x, y, power=2.0, *, factor=1):
    return x**power * y * factor


def points(count=2, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(3, dtype=torch.float64, generator=generator) + 0.5 for _ in range(count)]


TRANSFORMS = {
    "grad": lambda f, x, y: torch.func.grad(f, (0, 1))(x, y),
    "jacrev of jacrev": lambda f, x, y: torch.func.jacrev(torch.func.jacrev(f, (0, 1)), (0, 1))(
        x, y
    ),
    "hessian": lambda f, x, y: torch.func.hessian(f, (0, 1))(x, y),
    "jvp": lambda f, x, y: torch.func.jvp(f, (x, y), (y, x)),
    "jacfwd of jacfwd": lambda f, x, y: torch.func.jacfwd(torch.func.jacfwd(f, (0, 1)), (0, 1))(
        x, y
    ),
    "vmap": lambda f, x, y: torch.func.vmap(f)(torch.stack([x, y]), torch.stack([y, y])),
    "vmap of grad": lambda f, x, y: torch.func.vmap(torch.func.grad(f), (0, None))(
        torch.stack([x, y]), y
    ),
    "grad of vmap": lambda f, x, y: torch.func.grad(
        lambda a: torch.func.vmap(f, (0, None))(torch.stack([a, y]), y).sum()
    )(x),
}


@pytest.mark.filterwarnings(NO_RULE)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_completed_operator_takes_every_transform(name):
    transform = TRANSFORMS[name]
    completed = pullback.complete(scale)
    x, y = points()
    got = transform(weighted(lambda x, y: completed(x, y, 3.0, factor=2)), x, y)
    agree(got, transform(weighted(lambda x, y: scale_in_torch(x, y, 3.0, factor=2)), x, y))


@pytest.mark.filterwarnings(NO_RULE)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_what_setup_context_computes_of_the_output_is_differentiated(name):
    transform = TRANSFORMS[name]
    completed = pullback.complete(exponential)
    x, y = points()
    got = transform(weighted(lambda x, y: completed(x) * y), x, y)
    agree(got, transform(weighted(lambda x, y: x.exp() * y), x, y))


def test_values_and_gradients_are_those_of_the_operator_to_the_last_bit():
    x, y = (point.requires_grad_() for point in points())
    plain, completed = scale(x, y, factor=3), pullback.complete(scale)(x, y, factor=3)
    assert torch.equal(plain, completed)
    for one, other in zip(
        torch.autograd.grad(plain.sum(), (x, y)), torch.autograd.grad(completed.sum(), (x, y)),
        strict=True,
    ):  # fmt: skip
        assert torch.equal(one, other)


@pytest.mark.filterwarnings(NO_RULE)
def test_a_backward_that_is_an_operator_itself_is_loud_where_it_would_be_differentiated():
    completed = pullback.complete(sine)
    (x,) = points(1)
    agree(torch.func.grad(lambda x: completed(x).sum())(x), x.cos())
    agree(torch.func.vmap(torch.func.grad(completed))(x), x.cos())
    for ask in (
        lambda: torch.func.hessian(lambda x: completed(x).sum())(x),
        lambda: torch.func.grad(torch.func.grad(completed))(x[0]),
        lambda: torch.func.jvp(completed, (x,), (x,)),  # the transpose of backward
    ):
        with pytest.raises(UnsupportedError, match="the operator pullback_tests::sine_backward"):
            ask()


def test_a_backward_that_is_a_differentiable_operator_has_a_second_derivative():
    sine_backward.register_autograd(sine_second, setup_context=keep_inputs)
    try:
        completed = pullback.complete(sine)
        (x,) = points(1)
        agree(torch.func.jvp(completed, (x,), (x,)), (x.sin(), x.cos() * x))
        agree(torch.func.hessian(lambda x: completed(x).sum())(x), torch.diag(-x.sin()))
    finally:
        sine_backward._backward_fn = sine_backward._setup_context_fn = None


@pytest.mark.parametrize("backend", ["aot_eager"])
def test_a_completed_operator_compiles_whole(backend):
    completed = pullback.complete(scale)
    x, y = points()

    def whole(function):
        return torch.compile(function, fullgraph=True, backend=backend)

    leaf = x.clone().requires_grad_()
    (got,) = torch.autograd.grad(whole(lambda x: completed(x, y, factor=3))(leaf).sum(), leaf)
    agree(got, 6 * x * y)
    agree(whole(torch.func.grad(lambda x: completed(x, y).sum()))(x), 2 * x * y)
    agree(
        whole(lambda x: torch.func.jvp(lambda z: completed(z, y), (x,), (y,))[1])(x), 2 * x * y * y
    )


def test_lists_of_tensors_are_differentiated_and_flags_come_in_lists():
    completed = pullback.complete(torch.ops.pullback_tests.sum_and_scale)
    x, y = points()
    SEEN.clear()

    def use(function):
        def total(x, y):
            scaled, whole = function([x, x * y], 3.0)
            return (scaled[0] * scaled[1]).sum() + (whole * y).sum()

        return total

    reference = use(lambda parts, factor: ([p * factor for p in parts], torch.stack(parts).sum(0)))
    agree(torch.func.grad(use(completed), (0, 1))(x, y), torch.func.grad(reference, (0, 1))(x, y))
    assert SEEN[-1] == ([True, True], False)
    agree(torch.func.hessian(use(completed))(x, y), torch.func.hessian(reference)(x, y))


def test_every_spelling_names_the_same_callable():
    completed = pullback.complete(scale)
    assert completed is pullback.complete("pullback_tests::scale")
    assert completed is pullback.complete("pullback_tests::scale.default")
    assert completed is pullback.complete(torch.ops.pullback_tests.scale)
    assert completed is pullback.complete(torch.ops.pullback_tests.scale.default)
    assert completed is not pullback.complete(scale, batching="loop")
    assert completed.__doc__ == "y times factor times x to a power, in numpy."
    assert completed.__name__ == "pullback_tests::scale"
    assert completed.__wrapped__ is torch.ops.pullback_tests.scale.default


def test_rules_that_are_registered_later_are_used():
    @torch.library.custom_op("pullback_tests::late", mutates_args=())
    def late(x: torch.Tensor) -> torch.Tensor:
        return x * x

    x = torch.tensor([3.0])
    with pytest.raises(UnsupportedError, match="No gradient is registered for the operator"):
        torch.func.grad(lambda x: pullback.complete(late)(x).sum())(x)
    for factor in (2, 5):
        late.register_autograd(
            lambda ctx, g, factor=factor: factor * ctx.saved_tensors[0] * g,
            setup_context=keep_inputs,
        )
        got = torch.func.grad(lambda x: pullback.complete(late)(x).sum())(x)
        assert got == factor * x


def test_an_operator_that_is_made_of_differentiable_ones_is_returned_as_it_is():
    completed = pullback.complete("pullback_tests::composite")
    assert completed is torch.ops.pullback_tests.composite.default
    (x,) = points(1)
    agree(torch.func.grad(lambda x: completed(x).sum())(x), x.cos() * x + x.sin())


def test_nothing_of_the_operator_runs_when_it_is_completed():
    calls = []

    @torch.library.custom_op("pullback_tests::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append("forward")
        return x.clone()

    counted.register_autograd(
        lambda ctx, cotangent: cotangent,
        setup_context=lambda ctx, inputs, output: calls.append("setup_context"),
    )
    pullback.complete(counted)
    assert calls == []


@pytest.mark.parametrize(
    ("operator", "error", "match"),
    [
        ("pullback_tests::by_hand", UnsupportedError, "cannot be read"),
        ("aten::sin.default", UnsupportedError, "cannot be read"),
        ("pullback_tests::writes", UnsupportedError, "writes into its arguments"),
        ("pullback_tests::missing", ArgumentError, "There is no operator"),
        ("nowhere::missing", ArgumentError, "There is no operator"),
        ("pullback_tests::several", ArgumentError, "several overloads"),
        ("not a name", ArgumentTypeError, "complete takes a Function class"),
    ],
)
def test_what_cannot_be_completed_is_refused_by_name(operator, error, match):
    with pytest.raises(error, match=match):
        pullback.complete(operator)


def test_an_operator_without_a_rule_runs_and_refuses_its_derivative():
    completed = pullback.complete("pullback_tests::without_rule")
    (x,) = points(1)
    agree(completed(x), x * x)
    for ask in (
        lambda: torch.func.grad(lambda x: completed(x).sum())(x),
        lambda: torch.func.jvp(completed, (x,), (x,)),
        lambda: completed(x.clone().requires_grad_()).sum().backward(),
    ):
        with pytest.raises(UnsupportedError, match="No gradient is registered"):
            ask()
