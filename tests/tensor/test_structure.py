"""Keyword arguments and nested dicts, lists and tuples, in and out."""

from collections import namedtuple
from functools import partial

import pytest
import torch
from tests.tensor.cases import Nested
from tests.tensor.helpers import agree

import pullback
from pullback.errors import ArgumentTypeError, DefinitionError
from pullback.internal.torch import pytree


class Affine(pullback.Function):
    """A dict of outputs from nested and keyword-only arguments."""

    @staticmethod
    def forward(x, weights, *, bias=None, scale=1.0):
        total = x @ weights["matrix"] * scale
        return {"out": total if bias is None else total + bias, "parts": (x.sum(), "label")}

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weights, bias, ctx.scale = inputs
        ctx.save_for_backward(x, weights["matrix"])
        ctx.has_bias = bias is not None

    @staticmethod
    def backward(ctx, cotangents):
        x, matrix = ctx.saved_tensors
        g, (total, label) = cotangents["out"], cotangents["parts"]
        assert label is None
        return (
            g @ matrix.T * ctx.scale + total,
            {"matrix": x.T @ g * ctx.scale, "unused": None},
            g.sum(0) if ctx.has_bias else None,
            None,
        )


def tensors():
    generator = torch.Generator().manual_seed(3)
    shapes = (2, 3), (3, 4), (4,)
    made = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [tensor.requires_grad_() for tensor in made]


def test_nested_outputs_and_keyword_arguments_are_differentiated():
    x, matrix, bias = tensors()
    result = Affine.apply(x, {"matrix": matrix, "unused": 3}, bias=bias, scale=2.0)
    want = x @ matrix * 2 + bias
    agree(result["out"], want)
    assert result["parts"][1] == "label"
    scalar = (result["out"] ** 2).sum() + 5 * result["parts"][0]
    want_scalar = (want**2).sum() + 5 * x.sum()
    agree(
        torch.autograd.grad(scalar, (x, matrix, bias)),
        torch.autograd.grad(want_scalar, (x, matrix, bias)),
    )


def test_defaults_may_be_left_out():
    x, matrix, _ = tensors()
    agree(Affine.apply(x, weights={"matrix": matrix})["out"], x @ matrix)


def test_func_transforms_reach_into_dicts():
    x, matrix, bias = tensors()

    def loss(parameters):
        return Affine.apply(x, {"matrix": parameters["m"]}, bias=parameters["b"])["out"].sin().sum()

    def formula(parameters):
        return (x @ parameters["m"] + parameters["b"]).sin().sum()

    parameters = {"m": matrix.detach(), "b": bias.detach()}
    agree(torch.func.grad(loss)(parameters), torch.func.grad(formula)(parameters))
    agree(
        torch.func.hessian(loss)(parameters)["m"]["b"],
        torch.func.hessian(formula)(parameters)["m"]["b"],
    )


class Mistaken(pullback.Function):
    @staticmethod
    def forward(parameters, how):
        return parameters["a"] * parameters["b"]

    @staticmethod
    def setup_context(ctx, inputs, output):
        parameters, ctx.how = inputs
        ctx.save_for_backward(parameters["a"], parameters["b"])

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return {
            "swapped": ({"b": g * a, "a": g * b}, None),
            "missing key": ({"a": g * b}, None),
            "a list": ([g * b, g * a], None),
            "too few": {"a": g * b, "b": g * a},
            "too many": ({"b": g * a, "a": g * b}, None, None),
            "surplus": ({"b": g * a, "a": g * b}, None, g),
        }[ctx.how]


@pytest.mark.parametrize("how", ["swapped", "too many"])
def test_gradients_are_matched_by_key(how):
    a = torch.tensor(2.0, requires_grad=True)
    b = torch.tensor(3.0, requires_grad=True)
    out = Mistaken.apply({"a": a, "b": b}, how)
    assert [g.item() for g in torch.autograd.grad(out, (a, b))] == [3.0, 2.0]


@pytest.mark.parametrize("how", ["missing key", "a list", "too few", "surplus"])
def test_a_gradient_of_another_structure_is_refused(how):
    a = torch.tensor(2.0, requires_grad=True)
    out = Mistaken.apply({"a": a, "b": torch.tensor(3.0)}, how)
    with pytest.raises(DefinitionError, match="Mistaken") as caught:
        out.backward()
    assert caught.value.mend


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, 2, 3), {}), (({},), {"exponent": 2}), (({},), {"parameters": {}})],
)
def test_arguments_that_do_not_fit_are_refused_before_any_work(args, kwargs):
    with pytest.raises(ArgumentTypeError, match="Nested") as caught:
        Nested.apply(*args, **kwargs)
    assert "power" in str(caught.value)


def test_no_tensor_at_all_and_empty_tensors():
    empty = torch.zeros(0, 3, dtype=torch.float64, requires_grad=True)
    out = Affine.apply(empty, {"matrix": torch.ones(3, 2, dtype=torch.float64)})
    assert out["out"].shape == (0, 2)
    out["out"].sum().backward()
    assert empty.grad.shape == (0, 3)


class Undifferentiated(pullback.Function):
    """Returns its input as it is, inside structures; counts what is called."""

    seen = ()

    @staticmethod
    def forward(x, sizes):
        return {"same": x, "sizes": sizes}, x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        Undifferentiated.seen = (inputs, ctx.needs_input_grad)

    @staticmethod
    def backward(ctx, same, twice):
        return same["same"] + 2 * twice, None


@pytest.mark.parametrize("wanted", [True, False])
def test_without_gradients_a_function_is_called_as_with_them(wanted):
    x, sizes = torch.randn(3, requires_grad=wanted), [2, (3, {"depth": 4})]
    with torch.set_grad_enabled(False):
        kept, twice = Undifferentiated.apply(x, sizes)
    assert kept["same"] is not x
    assert kept["same"].data_ptr() == x.data_ptr()
    assert kept["sizes"] == sizes
    assert torch.equal(twice, x * 2)
    assert not twice.requires_grad
    (given, passed), needs = Undifferentiated.seen
    assert torch.equal(given, x)
    assert passed is sizes
    assert needs == (wanted, False)


def test_data_without_tensors_stays_the_object_that_was_given():
    x, sizes = torch.randn(3, requires_grad=True), [2, (3, {"depth": None})]
    kept, twice = Undifferentiated.apply(x, sizes)
    assert Undifferentiated.seen[0][1] is sizes
    assert kept["sizes"] == sizes
    (gradient,) = torch.autograd.grad(twice.sum() + kept["same"].sum(), x)
    assert torch.equal(gradient, torch.full((3,), 3.0))


class Wrapped(pullback.Function):
    """Gives the gradient of a tensor inside of a dict."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return {"x": g * 2}


def test_a_gradient_wrapped_up_is_refused():
    @pullback.custom_vjp
    def doubled(x):
        return x * 2

    doubled.defvjp(lambda x: (x * 2, None), lambda residuals, g: ({"x": g * 2},))
    x = torch.tensor(2.0, requires_grad=True)
    for function in (Wrapped.apply, doubled):
        with pytest.raises(DefinitionError, match="structure"):
            torch.func.grad(function)(x)
        with pytest.raises(DefinitionError, match="structure"):
            torch.autograd.grad(function(x), x, create_graph=True)
        with pytest.raises(RuntimeError, match="expected Variable or None"):  # torch's own
            function(x).backward()


class Pair:
    """A class that its author has registered with torch as a node of a tree."""

    def __init__(self, one, other):
        self.one, self.other = one, other


pytree.register_pytree_node(
    Pair,
    lambda pair: ((pair.one, pair.other), None),
    lambda parts, _: Pair(*parts),
    serialized_type_name="tests.tensor.test_structure.Pair",
)
Named = namedtuple("Named", ["one", "other"])


@pytest.mark.parametrize("kind", [Pair, Named])
def test_what_torch_knows_as_a_tree_has_gradients_as_an_argument_and_as_a_result(kind):
    class Crossed(pullback.Function):
        @staticmethod
        def forward(ctx, pair):
            ctx.save_for_backward(pair.one, pair.other)
            return kind(pair.one * pair.other, pair.one + pair.other)

        @staticmethod
        def backward(ctx, cotangent):
            one, other = ctx.saved_tensors
            g, h = cotangent.one, cotangent.other
            return (kind(g * other + h, g * one + h),)

    def cost(apply, x):
        found = apply(kind(x, x.sin()))
        return (found.one * found.other).sum()

    x = torch.randn(3, dtype=torch.float64)
    plain = partial(cost, lambda pair: kind(pair.one * pair.other, pair.one + pair.other))
    ours = partial(cost, Crossed.apply)
    y = x.clone().requires_grad_()
    expected = torch.func.grad(plain)(x)
    torch.testing.assert_close(torch.autograd.grad(ours(y), y)[0], expected)
    torch.testing.assert_close(torch.func.grad(ours)(x), expected)
    torch.testing.assert_close(torch.func.hessian(ours)(x), torch.func.hessian(plain)(x))
    tangent = torch.ones_like(x)
    torch.testing.assert_close(
        torch.func.jvp(ours, (x,), (tangent,)), torch.func.jvp(plain, (x,), (tangent,))
    )
