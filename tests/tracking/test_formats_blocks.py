"""Formats by channel and block run each product as torch does: roles, masks, dtypes, sizes."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrizations

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.tracking import simulate_format
from pullback.tracking.formats import (
    ProductFormats,
    Recipe,
    ScaledFormat,
    find_format,
    round_values,
)

attention = functional.scaled_dot_product_attention


class Product(nn.Module):
    def __init__(self, product):
        super().__init__()
        self.product = product

    def forward(self, *tensors):
        return self.product(*tensors)


def simulated(product, forward, **settings):
    return simulate_format(Product(product), forward=forward, **settings)


@pytest.mark.parametrize("weight", ["MXFP4", "E2M1"])
@pytest.mark.parametrize("kind", ["parametrized", "called"])
def test_the_weight_of_a_layer_is_one_also_where_it_is_no_parameter(kind, weight):
    layer = nn.Linear(64, 8)
    recipe = Recipe({"*": ProductFormats(weight=weight, activation="bf16")})
    if kind == "parametrized":
        model = simulate_format(parametrizations.weight_norm(layer), recipe=recipe, measure=True)
        model(torch.randn(3, 64))
    else:
        model = simulate_format(layer, recipe=recipe, measure=True)
        given = {"model.weight": torch.randn(8, 64), "model.bias": torch.randn(8)}
        functional_call(model, given, (torch.randn(3, 64),))
    found = {(each.role, each.number_format) for each in model.noise()}
    assert found == {("weight", weight), ("activation", "bf16")}


MASKS = {
    "boolean": torch.tensor([[True, False], [False, False]]),
    "floating": torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]]),
}


@pytest.mark.parametrize("name", MASKS)
def test_rows_that_see_nothing_attend_to_nothing(name):
    q, k, v = (torch.randn(1, 2, 32, requires_grad=True) for _ in range(3))
    y = simulated(attention, "MXFP8", backward="MXFP8 E5M2")(q, k, v, MASKS[name])
    assert not y[0, 1].any()
    assert y[0, 0].all()
    y.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    assert v.grad.any()


def test_masks_that_torch_refuses_are_refused():
    q = torch.randn(1, 2, 32)
    attend = simulated(lambda *given: attention(*given, is_causal=True), "MXFP8")
    with pytest.raises(ArgumentError, match="is_causal"):
        attend(q, q, q, MASKS["boolean"])
    with pytest.raises(ArgumentTypeError, match="mask"):
        simulated(attention, "MXFP8")(q, q, q, torch.ones(2, 2, dtype=torch.int64))


def test_a_floating_mask_leaves_the_dtype():
    q = torch.randn(1, 2, 32, dtype=torch.bfloat16)
    mask = torch.zeros(2, 2)
    assert simulated(attention, "MXFP8")(q, q, q, mask).dtype == attention(q, q, q, mask).dtype


@pytest.mark.parametrize("name", ["E4M3", "MXFP8", "int8"])
def test_products_of_integers_are_exact(name):
    a, b = torch.tensor([[1000, 33, 7]]), torch.tensor([[1], [77], [1001]])
    assert simulated(torch.matmul, name, backward=name)(a, b).item() == 10548
    added = simulated(torch.addmm, name, backward=name)(torch.tensor([[1]]), a, b)
    assert added.item() == 10549


@pytest.mark.parametrize("name", ["E4M3", "MXFP8"])
def test_under_autocast_the_dtypes_are_those_of_torch(name):
    layer, x = nn.Linear(32, 4), torch.randn(2, 32, requires_grad=True)
    two = nn.Sequential(layer, nn.Linear(4, 3))
    mask = torch.zeros(2, 2)
    added = torch.randn(4), x, layer.weight.detach().mT
    with torch.autocast("cpu", torch.bfloat16):
        y = simulate_format(two, forward=name, backward=name)(x)
        assert simulate_format(layer, forward=name)(x).dtype == layer(x).dtype
        assert simulated(torch.addmm, name)(*added).dtype == torch.bfloat16
        assert simulated(attention, name)(x, x, x, mask).dtype == torch.bfloat16
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert x.grad.dtype == layer.weight.grad.dtype == layer.bias.grad.dtype == torch.float32


@pytest.mark.parametrize("name", ["E4M3", "MXFP8"])
def test_a_bias_of_another_dtype_is_refused_without_autocast(name):
    x, weight, bias = torch.randn(2, 32), torch.randn(4, 32), torch.randn(4).double()
    with pytest.raises((RuntimeError, ArgumentTypeError), match="dtype"):
        simulated(functional.linear, name)(x, weight, bias)
    with pytest.raises((RuntimeError, ArgumentTypeError), match="dtype"):
        simulated(torch.addmm, name)(bias, x, weight.mT)


@pytest.mark.parametrize("name", ["E4M3", "MXFP8", "NVFP4", "int8"])
@pytest.mark.parametrize("shape", [(3, 0), (0,), (2, 3, 0)])
def test_layers_without_inputs_give_their_bias(name, shape):
    layer = nn.Linear(1, 4)
    layer.weight = nn.Parameter(torch.zeros(4, 0))
    y = simulate_format(layer, forward=name, backward=name)(torch.zeros(shape))
    torch.testing.assert_close(y, layer.bias.expand(*shape[:-1], 4))
    y.sum().backward()
    assert layer.weight.grad.shape == (4, 0)


def test_complex_products_round_along_what_they_sum_over():
    a, b = (torch.randn(*shape, dtype=torch.complex128) for shape in ((3, 40), (40, 5)))
    a.requires_grad_()
    product = simulated(torch.matmul, "MXFP8", backward="MXFP8 E5M2")

    def along(x, name, dim):
        known = find_format(name).along(dim)
        return torch.complex(round_values(x.real, known), round_values(x.imag, known))

    y, g = product(a, b), torch.randn(3, 5, dtype=torch.complex128)
    torch.testing.assert_close(y, along(a.detach(), "MXFP8", -1) @ along(b, "MXFP8", 0))
    (got,) = torch.autograd.grad(y, a, g)
    torch.testing.assert_close(got, along(g, "MXFP8 E5M2", -1) @ along(b, "MXFP8", -1).mH)


class TwoInputs(nn.Bilinear):
    def forward(self, x):
        return super().forward(x, x)


def test_every_factor_is_measured():
    layer, x = TwoInputs(8, 8, 4), torch.randn(16, 8)
    model = simulate_format(layer, forward="E2M1", measure=True)
    model(x)
    found = {each.role: each.count for each in model.noise()}
    assert found == {"weight": layer.weight.numel(), "activation": 2 * x.numel()}
    for name, count in (("E2M1", 3 * 256), ("MXFP8", 4 * 256)):  # by block the softmax as well
        attend = simulated(attention, name, measure=True)
        q = torch.randn(1, 16, 16, requires_grad=True)
        attend(q, q, q)
        assert [each.count for each in attend.noise()] == [count]


@pytest.mark.parametrize("name", ["E5M2", "MXFP8 E5M2"])
def test_the_noise_of_a_gradient_is_that_of_its_rounding(name):
    x, g = torch.randn(32, 64), torch.randn(32, 64)
    weight = torch.eye(64, requires_grad=True)
    measured = {}
    for rounding in ("nearest", "stochastic"):
        model = simulated(
            torch.matmul, None, backward=name, rounding=rounding, measure=True,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        x.requires_grad_().grad = None
        model(x, weight).backward(g)
        (found,) = model.noise()
        measured[rounding] = found.decibels
        lost = g.double() - x.grad.double()  # the gradient of x is the rounded one
        expected = 10 * (g.double().square().sum() / lost.square().sum()).log10()
        assert found.decibels == pytest.approx(float(expected))
    assert measured["stochastic"] < measured["nearest"] - 2


def test_a_delayed_scale_of_complex_values_comes_of_their_parts():
    delayed = ScaledFormat("delayed", find_format("E4M3"), history=1)
    x, one = torch.tensor([[3.0 + 4.0j]]), torch.eye(1, dtype=torch.complex64)
    recipe = Recipe({"*": ProductFormats(activation=delayed)})
    model = simulate_format(Product(torch.matmul), recipe=recipe)
    torch.testing.assert_close(model(x, one), model(x, one))
    torch.testing.assert_close(model(x, one).imag, torch.tensor([[4.0]]))
