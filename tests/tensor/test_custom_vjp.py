"""The decorator form."""

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
