"""The decorator form."""

import copy
import pickle

import pytest
import torch
from tests.tensor.helpers import agree

import pullback
from pullback.errors import ArgumentError, ArgumentTypeError, DefinitionError


@pullback.custom_vjp
def product(x, y):
    """x * y."""
    return x * y


product.defvjp(lambda x, y: (x * y, (x, y)), lambda res, g: (g * res[1], g * res[0]))


def test_it_is_the_function_where_nothing_is_differentiated():
    assert product.__name__ == "product"
    assert product.__doc__ == "x * y."
    assert product(torch.tensor(2.0), y=torch.tensor(3.0)) == 6


def test_the_primal_runs_where_no_derivative_can_be_asked_for():
    calls = []

    @pullback.custom_vjp
    def double(x):
        calls.append("primal")
        return 2 * x

    def forward(x):
        calls.append("forward")
        return 2 * x, None

    double.defvjp(forward, lambda residuals, g: 2 * g)
    double(torch.ones(1))
    double(torch.ones(1, requires_grad=True))
    torch.func.grad(double)(torch.tensor(1.0))
    assert calls == ["primal", "forward", "forward"]


def test_second_order_goes_through_the_residuals():
    @pullback.custom_vjp
    def cube(x):
        return x**3

    cube.defvjp(lambda x: (x**3, {"d": 3 * x**2}), lambda res, g: res["d"] * g)
    x = torch.tensor(2.0, dtype=torch.float64)
    agree(torch.func.hessian(cube)(x), torch.tensor(12.0, dtype=torch.float64))


def test_nested_outputs_and_keyword_only_arguments():
    @pullback.custom_vjp(static=("power",))
    def powers(x, *, power, shift=None):
        return {"low": x, "high": [x**power]}

    powers.defvjp(
        lambda x, *, power, shift=None: ({"low": x * 1, "high": [x**power]}, (x, power)),
        lambda res, g: (g["low"] + g["high"][0] * res[1] * res[0] ** (res[1] - 1), None),
    )
    x = torch.tensor(2.0, requires_grad=True)
    out = powers(x, power=3)
    (g,) = torch.autograd.grad(out["low"] + out["high"][0], x)
    assert g == 13


def test_a_forward_rule_of_its_own_replaces_the_derived_one():
    @pullback.custom_vjp
    def sine(x):
        return x.sin()

    sine.defvjp(lambda x: (x.sin(), x), lambda x, g: x.cos() * g)
    sine.defjvp(lambda primals, tangents: (primals[0].sin(), 100 * tangents[0]))
    x = torch.tensor(0.5)
    assert torch.func.jvp(sine, (x,), (torch.ones(()),))[1] == 100


def test_bad_use_is_refused():
    with pytest.raises(ArgumentError, match="static"):
        pullback.custom_vjp(static=("z",))(lambda x: x)
    with pytest.raises(ArgumentTypeError, match="as a tuple") as caught:
        pullback.custom_vjp(static="power")
    assert caught.value.mend == "Write static=('power',)."
    with pytest.raises(ArgumentError, match="unknown gradient intent"):
        pullback.custom_vjp(gradient="exactly")
    with pytest.raises(ArgumentTypeError, match="callable"):
        product.defvjp(None, lambda res, g: g)

    @pullback.custom_vjp(static=("n",))
    def scaled(x, n):
        return x * n

    with pytest.raises(DefinitionError, match="no rules yet"):
        scaled(torch.ones(1), 2)
    scaled.defvjp(lambda x, n: x * n, lambda res, g: g)
    with pytest.raises(ArgumentTypeError, match="holds a tensor"):
        scaled(torch.ones(1), torch.ones(1))
    with pytest.raises(ArgumentTypeError, match="does not take"):
        scaled(torch.ones(1))
    with pytest.raises(DefinitionError, match="no pair"):
        scaled(torch.ones(1, requires_grad=True), 2)


@pullback.custom_vjp(static=("power",))
def weighted_sum(power, *terms):
    return sum(n * t**power for n, t in enumerate(terms, start=1))


weighted_sum.defvjp(
    lambda power, *terms: (sum(n * t**power for n, t in enumerate(terms, start=1)), (power, terms)),
    lambda res, g: tuple(n * res[0] * t ** (res[0] - 1) * g for n, t in enumerate(res[1], start=1)),
)


@pullback.custom_vjp(static=("scale",))
def product_of_all(x, *rest, scale=1.0):
    return scale * x * rest[0] * rest[1]


product_of_all.defvjp(
    lambda x, *rest, scale=1.0: (scale * x * rest[0] * rest[1], (x, rest, scale)),
    lambda res, g: (
        res[2] * res[1][0] * res[1][1] * g,
        res[2] * res[0] * res[1][1] * g,
        res[2] * res[0] * res[1][0] * g,
    ),
)


@pullback.custom_vjp(static=("rest",))
def scaled_by_numbers(x, *rest, y):
    return x * sum(rest) * y


scaled_by_numbers.defvjp(
    lambda x, *rest, y: (x * sum(rest) * y, (x, sum(rest), y)),
    lambda res, g: (res[1] * res[2] * g, res[0] * res[1] * g),
)


def test_arguments_without_a_name_beside_static_ones():
    a, b = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (2.0, 3.0))
    agree(weighted_sum(3, a, b), a**3 + 2 * b**3)
    agree(torch.autograd.grad(weighted_sum(3, a, b), (a, b)), (3 * a**2, 6 * b**2))
    agree(
        torch.func.hessian(weighted_sum, (1, 2))(3, a.detach(), b.detach()),
        ((6 * a.detach(), 0 * a.detach()), (0 * a.detach(), 12 * b.detach())),
    )
    x = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    agree(
        torch.autograd.grad(product_of_all(x, a, b, scale=2.0), (x, a, b)),
        (2 * a * b, 2 * x * b, 2 * x * a),
    )
    agree(torch.autograd.grad(product_of_all(x, a, b), (x, a, b)), (a * b, x * b, x * a))


def test_arguments_without_a_name_that_are_static():
    x, y = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (2.0, 3.0))
    agree(torch.autograd.grad(scaled_by_numbers(x, 1, 2, 4, y=y), (x, y)), (7 * y, 7 * x))
    agree(torch.autograd.grad(scaled_by_numbers(x, y=y), (x, y)), (0 * y, 0 * x))
    with pytest.raises(ArgumentTypeError, match="holds a tensor"):
        scaled_by_numbers(x, 1, y, y=y)


def test_keywords_without_a_name_are_passed_by_name():
    @pullback.custom_vjp(static=("options",))
    def power(x, **options):
        return x ** options.get("n", 1)

    power.defvjp(
        lambda x, **options: (x ** options.get("n", 1), (x, options.get("n", 1))),
        lambda res, g: res[1] * res[0] ** (res[1] - 1) * g,
    )
    x = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    agree(torch.autograd.grad(power(x, n=3), x)[0], torch.tensor(12.0, dtype=torch.float64))
    assert power(x) == 2


def test_a_wrong_number_of_gradients_is_refused():
    @pullback.custom_vjp(static=("n",))
    def scaled(x, n, *more):
        return x * n

    scaled.defvjp(lambda x, n, *more: (x * n, n), lambda n, g: (n * g, None, n * g))
    x = torch.ones(1, requires_grad=True)
    with pytest.raises(DefinitionError, match="number of gradients"):
        scaled(x, 2, x).backward()


def test_a_forward_rule_sees_arguments_without_a_name_one_by_one():
    @pullback.custom_vjp
    def product(x, *rest):
        return x * rest[0]

    product.defvjp(
        lambda x, *rest: (x * rest[0], (x, rest[0])), lambda res, g: (res[1] * g, res[0] * g)
    )
    product.defjvp(
        lambda primals, tangents: (
            primals[0] * primals[1],
            tangents[0] * primals[1] + primals[0] * tangents[1] + 100,
        )
    )
    x, y = torch.tensor(2.0), torch.tensor(3.0)
    assert torch.func.jvp(product, (x, y), (x, y))[1] == 112


@pullback.custom_vjp
def stepped(x):
    return x.round()


stepped.defvjp(lambda x: (x.round(), None), lambda residuals, cotangent: cotangent)


def test_it_pickles_and_copies_by_its_name_as_any_function():
    assert pickle.loads(pickle.dumps(stepped)) is stepped
    assert copy.deepcopy(torch.nn.ModuleList([Holder(stepped)]))[0].function is stepped


class Holder(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function


def test_residuals_are_saved_as_torch_saves_tensors():
    x = torch.tensor(3.0, requires_grad=True)
    weight = torch.tensor(2.0)
    packed = []
    keep = torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t) or t.clone(), lambda t: t
    )
    with keep:
        out = product(x, weight)
    assert len(packed) == 2
    (gradient,) = torch.autograd.grad(out, x)
    assert gradient == 2
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, x)


def test_a_residual_that_has_changed_in_place_since_is_noticed():
    x = torch.tensor(3.0, requires_grad=True)
    weight = torch.tensor(2.0)
    out = product(x, weight)
    weight.mul_(5)  # as an optimiser changes a parameter
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_a_method_says_how_it_is_called():
    class Layer:
        factor = 3.0

        @pullback.custom_vjp
        def scale(self, x):
            return self.factor * x

        scale.defvjp(
            lambda self, x: (self.factor * x, self), lambda self, g: (None, self.factor * g)
        )

    layer, x = Layer(), torch.ones(2)
    with pytest.raises(ArgumentTypeError, match="missing a required argument: 'x'") as caught:
        layer.scale(x)
    assert "call Layer.scale(self, ...)" in str(caught.value)
    assert torch.equal(torch.func.grad(lambda x: Layer.scale(layer, x).sum())(x), 3 * x)
