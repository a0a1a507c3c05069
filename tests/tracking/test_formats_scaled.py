"""Formats with scales: the published definitions, the three products of a layer, recipes."""

import functools
import math
import pickle
import sys

import pytest
import torch
from tests.tracking.models import sequential
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.tracking import simulate_format
from pullback.tracking.formats import (
    E2M1,
    E4M3,
    INT4,
    INT8,
    SCALED_FORMATS,
    NumberFormat,
    ProductFormats,
    Recipe,
    ScaledFormat,
    draw_noise,
    find_format,
    round_values,
    signal_to_noise,
)

NAMES = [known.name for known in SCALED_FORMATS]


def by_hand(block, name):
    """One block of a published format, with plain arithmetic."""
    peak = block.abs().max().item()
    if peak == 0:
        return block
    if name == "MXFP8":
        scale = 2.0 ** (math.floor(math.log2(peak)) - 8)
        return round_values(block / scale, E4M3) * scale
    if name == "MXFP4":
        scale = 2.0 ** (math.floor(math.log2(peak)) - 2)
        return round_values(block / scale, E2M1) * scale
    scale = torch.tensor(peak / (127 if name == "int8" else 7)).item()
    return (block / scale).round() * scale


@pytest.mark.parametrize(
    ("name", "size"), [("MXFP8", 32), ("MXFP4", 32), ("int4", 32), ("int8", 99)]
)
def test_each_block_is_what_its_definition_says(name, size):
    x = torch.randn(3, 70, dtype=torch.float64) * torch.logspace(-6, 6, 70, dtype=torch.float64)
    x[1, 32:64] = 0
    got = round_values(x, find_format(name))
    for row, values in zip(got, x, strict=True):
        expected = torch.cat(
            [by_hand(block, name) for block in values.split(70 if name == "int8" else size)]
        )
        torch.testing.assert_close(row, expected, rtol=1e-12, atol=0)


def test_a_power_of_two_reaches_beyond_float32():
    x = torch.tensor([1e39, -3e38], dtype=torch.float64)
    torch.testing.assert_close(round_values(x, find_format("MXFP8")), by_hand(x, "MXFP8"))
    largest = torch.full((2,), 1e300, dtype=torch.float64)
    assert round_values(largest, find_format("MXFP8")).tolist() == [448 * 2.0**127] * 2
    double = NumberFormat("fp64", 11, 52, 1023, sys.float_info.max, infinite=True)
    assert torch.equal(round_values(x, ScaledFormat("blocks", double, 2, "E8M0")), x)


def test_nvfp4_has_two_levels():
    x = torch.randn(4, 64, dtype=torch.float64)
    x[0, :16] *= 1e-6  # a block far below its tensor keeps the least normal scale
    whole = (x.abs().max() / 6 / 448).float().double()
    got = round_values(x, find_format("NVFP4"))
    for row, values in zip(got, x, strict=True):
        for part, block in zip(row.split(16), values.split(16), strict=True):
            share = (block.abs().max() / 6 / whole).float().to(torch.float8_e4m3fn).double()
            scale = (share.clamp(min=2**-6) * whole).float().double()
            torch.testing.assert_close(part, round_values(block / scale, E2M1) * scale)


def test_integers_are_a_format_with_one_exponent_bit():
    x = torch.linspace(-140, 140, 2801, dtype=torch.float64)
    assert torch.equal(round_values(x, INT8), x.round().clamp(-127, 127) + 0.0)
    assert torch.equal(round_values(x / 16, INT4), (x / 16).round().clamp(-7, 7) + 0.0)
    assert (INT8.bits, INT4.bits) == (8, 4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_odd_values(name, dtype):
    known = find_format(name)
    for shape in ((), (0,), (3, 0), (0, 3), (5,), (2, 3, 33)):
        x = torch.randn(shape, dtype=dtype)
        y = round_values(x, known)
        assert y.shape == x.shape
        assert y.dtype == dtype
        # The scale of NVFP4 is rounded to float32, so that a second rounding may move its last bit.
        tolerance = {"rtol": 1e-6, "atol": 1e-6} if dtype == torch.float64 else {}
        torch.testing.assert_close(round_values(y, known), y, **tolerance)
    assert not round_values(torch.zeros(4), known).any()


@pytest.mark.parametrize("name", ["MXFP4", "int4", "E4M3 tensor"])
def test_stochastic_rounding_is_unbiased_and_a_stable_scale_keeps_values(name):
    x = torch.rand(1, 32, dtype=torch.float64).expand(4000, 32)
    mean = round_values(x, find_format(name), torch.rand(4000, 32)).mean(0)
    # MX rounds its scale down, so that the largest may saturate.
    torch.testing.assert_close(mean[x[0] < 0.7], x[0][x[0] < 0.7], rtol=0, atol=0.02)


def along(x, name, dim):
    return round_values(x, find_format(name).along(dim))


@pytest.mark.parametrize("name", [*NAMES, "E4M3"])
@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_the_parts_of_complex_values_go_along_the_dimension_that_is_asked_for(name, dim):
    known = find_format(name)
    known = known.along(dim) if isinstance(known, ScaledFormat) else known
    x = torch.randn(40, 50, dtype=torch.complex128) * torch.logspace(-3, 3, 50)
    noise = draw_noise(x)
    across = 1 if dim in {0, -2} else 0  # one tensor of both parts, side by side
    for drawn in (None, noise):
        beside = None if drawn is None else torch.cat(drawn.unbind(-1), across)
        both = round_values(torch.cat([x.real, x.imag], across), known, beside)
        expected = torch.complex(*both.chunk(2, across))
        torch.testing.assert_close(round_values(x, known, drawn), expected, rtol=0, atol=0)
    torch.testing.assert_close(round_values(x.conj(), known), round_values(x, known).conj())
    torch.testing.assert_close(round_values(x.conj().imag, known), round_values(-x.imag, known))
    if name in {"MXFP4", "int8"}:  # a scale for each part of a single value
        scalar = torch.tensor(3.0 + 0.1j)
        got = round_values(scalar, find_format(name))
        torch.testing.assert_close(got.imag, round_values(scalar.imag, find_format(name)))


@pytest.mark.parametrize("name", ["MXFP8", "NVFP4", "int8", "int4"])
@pytest.mark.parametrize("stack", [(), (2,)])
def test_each_product_rounds_along_what_it_sums_over(name, stack):
    a = torch.randn(*stack, 6, 40, dtype=torch.float64, requires_grad=True)
    layer = nn.Linear(40, 50, dtype=torch.float64)
    simulated = simulate_format(layer, forward=name, backward="MXFP8 E5M2")
    y = simulated(a)
    rows, weight = a.detach().reshape(-1, 40), layer.weight.detach()
    expected = along(rows, name, -1) @ along(weight, name, -1).T + layer.bias
    torch.testing.assert_close(y, expected.reshape(y.shape))
    g = torch.randn_like(y)
    da, dw, db = torch.autograd.grad(y, (a, layer.weight, layer.bias), g)
    flat = g.reshape(-1, 50)
    wanted = along(flat, "MXFP8 E5M2", -1) @ along(weight, name, 0)
    torch.testing.assert_close(da, wanted.reshape(da.shape))
    torch.testing.assert_close(dw, along(flat, "MXFP8 E5M2", 0).T @ along(rows, name, 0))
    torch.testing.assert_close(db, flat.sum(0))


PRODUCTS = {
    "vectors": (torch.matmul, (40,), (40,)),
    "matrix and vector": (torch.mv, (3, 40), (40,)),
    "vector and matrix": (torch.matmul, (40,), (40, 5)),
    "broadcast": (torch.matmul, (2, 1, 3, 40), (4, 40, 5)),
    "by name": (lambda a, b: torch.mm(a, mat2=b), (3, 40), (40, 5)),
    "added": (lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=3), (5,), (3, 40), (40, 5)),
    "reflected": (lambda a, b: b.__rmatmul__(a), (3, 40), (40, 5)),
    "attention": (functional.scaled_dot_product_attention, (2, 4, 40), (2, 6, 40), (2, 6, 3)),
    "causal": (
        lambda q, k: functional.scaled_dot_product_attention(q, k, k, is_causal=True),
        (2, 4, 40),
        (2, 4, 40),
    ),
    "grouped": (
        lambda q, k: functional.scaled_dot_product_attention(q, k, k, enable_gqa=True, scale=0.3),
        (1, 4, 4, 40),
        (1, 2, 4, 40),
    ),
}


class Product(nn.Module):
    def __init__(self, product):
        super().__init__()
        self.product = product

    def forward(self, *tensors):
        return self.product(*tensors)


@pytest.mark.parametrize("name", PRODUCTS)
def test_ways_of_a_product_are_right(name):
    """With a format that loses next to nothing, a product is what it is, and its gradient too."""
    product, *shapes = PRODUCTS[name]
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    fine = ScaledFormat("fine", find_format("fp16"), 8, "E8M0")
    results = []
    for run in (product, simulate_format(Product(product), forward=fine, backward=fine)):
        y = run(*tensors)
        torch.manual_seed(1)
        results.append((y, *torch.autograd.grad(y, tensors, torch.randn_like(y))))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0.05, atol=0.05)
    assert not torch.equal(results[0][0], results[1][0])


def test_what_has_no_way_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="conv1d"):
        simulate_format(nn.Conv1d(3, 3, 3), forward="MXFP8")(torch.randn(2, 3, 8))
    kept = simulate_format(nn.Conv1d(3, 3, 3), forward="E4M3 tensor")
    assert kept(torch.randn(2, 3, 8)).shape == (2, 3, 6)


def test_a_second_derivative_and_no_grad():
    layer, x = nn.Linear(40, 3), torch.randn(2, 40, requires_grad=True)
    simulated = simulate_format(layer, forward="MXFP8", backward="MXFP8 E5M2")
    (first,) = torch.autograd.grad(simulated(x).square().sum(), x, create_graph=True)
    first.square().sum().backward()
    assert layer.weight.grad.abs().sum() > 0
    with torch.no_grad():
        assert not simulated(x).requires_grad


class Headed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 8)), nn.Linear(8, 8)

    def forward(self, x):
        y = self.body(x)
        return self.head(y) @ y.mT


def test_a_recipe_goes_by_names_and_roles():
    model, x = Headed(), torch.randn(4, 8)
    recipe = Recipe({"head": None, "body": ProductFormats(weight="E2M1"), "*": ProductFormats()})
    got = simulate_format(model, recipe=recipe)(x)
    y = functional.linear(x, round_values(model.body[0].weight, E2M1), model.body[0].bias)
    torch.testing.assert_close(got, model.head(y) @ y.mT)
    rule = {"*": ProductFormats(activation="E2M1")}
    inner = simulate_format(model.body, recipe=Recipe(rule))(x)
    torch.testing.assert_close(inner, model.body(round_values(x, E2M1)))
    hooks = [part for part in model.modules() if part._forward_hooks or part._forward_pre_hooks]
    assert not hooks


def test_a_recipe_holds_for_what_a_checkpoint_computes_again():
    gradients = []
    for kind in (False, True):
        torch.manual_seed(0)
        model, x = Headed(), torch.randn(4, 8, requires_grad=True)
        body = model.body.forward
        if kind:
            again = functools.partial(checkpoint, body, use_reentrant=False)
            model.body.forward = again
        recipe = Recipe({"head": None, "*": ProductFormats("E2M1", "MXFP4", "MXFP8")})
        simulate_format(model, recipe=recipe)(x).square().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_delayed_scales_come_of_the_past():
    kept = ScaledFormat("delayed", E4M3, history=2)
    layer = nn.Linear(4, 4, bias=False)
    simulated = simulate_format(layer, recipe=Recipe({"*": ProductFormats(activation=kept)}))
    one, ten = torch.randn(3, 4), 10 * torch.randn(3, 4)
    current = layer(round_values(one, find_format("E4M3 tensor")))
    torch.testing.assert_close(simulated(one), current)  # nothing is known yet
    scale = one.abs().max() / 448
    torch.testing.assert_close(simulated(ten), layer(round_values(ten / scale, E4M3) * scale))
    scale = ten.abs().max() / 448  # the larger of the last two
    torch.testing.assert_close(simulated(one), layer(round_values(one / scale, E4M3) * scale))
    simulated.eval()
    before = simulated(one)
    simulated(1000 * ten)
    torch.testing.assert_close(simulated(one), before)


def test_delayed_scales_of_gradients():
    kept = ScaledFormat("delayed", E4M3, history=1)
    layer, x = nn.Linear(4, 4, bias=False), torch.randn(3, 4, requires_grad=True)
    simulated = simulate_format(layer, backward=kept)
    g = torch.randn(3, 4)
    simulated(x).backward(g)
    x.grad = None
    simulated(x).backward(100 * g)  # as much as the last one reached, and no more
    scale = g.abs().max() / 448
    torch.testing.assert_close(x.grad, round_values(100 * g / scale, E4M3) * scale @ layer.weight)
    with pytest.raises(UnsupportedError, match="checkpointing"):
        simulate_format(
            Product(lambda t: checkpoint(layer, t, use_reentrant=False)),
            forward=kept,
        )(x)


class OtherWay(nn.Module):
    """Multiplies once more while it trains: by a layer, or by a product of its own."""

    def __init__(self, kind):
        super().__init__()
        self.aux, self.main = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.kind = kind

    def product(self, x, layer):
        return layer(x) if self.kind == "layers" else functional.linear(x, layer.weight)

    def forward(self, x):
        if self.training:
            self.product(x, self.aux)
        return self.product(x, self.main)


@pytest.mark.parametrize("kind", ["layers", "functions"])
def test_a_delayed_scale_is_that_of_its_own_product_whichever_way_a_pass_takes(kind):
    model = OtherWay(kind)
    model.aux.weight.data.fill_(0.01)
    model.main.weight.data.fill_(10.0)
    simulated = simulate_format(model, forward=ScaledFormat("delayed", E4M3, history=16))
    simulated(torch.ones(2, 8))
    simulated.eval()
    torch.testing.assert_close(simulated(torch.ones(2, 8)), torch.full((2, 8), 80.0))
    model.main.weight.data.fill_(40.0)  # beyond what the product has seen
    torch.testing.assert_close(simulated(torch.ones(2, 8)), torch.full((2, 8), 80.0))
    again = pickle.loads(pickle.dumps(simulated))
    torch.testing.assert_close(again(torch.ones(2, 8)), torch.full((2, 8), 80.0))


def test_the_two_products_of_attention_have_a_scale_each():
    delayed = ScaledFormat("delayed", E4M3, history=4)
    recipe = Recipe({"*": ProductFormats(activation=delayed, gradient="MXFP8 E5M2")})
    attend = simulate_format(Product(functional.scaled_dot_product_attention), recipe=recipe)
    q, v = 100 * torch.ones(1, 4, 32), torch.ones(1, 4, 32)
    for _ in range(2):  # a quarter is exact under a scale of its own, not under that of a hundred
        torch.testing.assert_close(attend(q, q, v), v)


@pytest.mark.parametrize("formats", ["MXFP4", "int8 tensor"])
def test_the_noise_of_each_layer(formats):
    model, x = sequential(), torch.randn(64, 5)
    simulated = simulate_format(model, forward=formats, backward=formats, measure=True)
    simulated(x).square().sum().backward()
    found = {(each.module, each.role): each for each in simulated.noise()}
    first = found["0", "activation"]
    assert first.count == x.numel()
    assert first.decibels == pytest.approx(signal_to_noise(x, formats))
    weight = found["0", "weight"].decibels
    assert weight == pytest.approx(signal_to_noise(model[0].weight, formats))
    assert 5 < found["0", "gradient"].decibels < 60
    assert "SQNR / dB" in simulated.table()
    with pytest.raises(UnsupportedError, match="not measured"):
        simulate_format(model, forward=formats).noise()


def test_what_follows_may_change_a_product_in_place():
    x, model = torch.randn(3, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    plain = nn.Sequential(model[0], nn.ReLU())
    for formats in ("E4M3", "MXFP8"):
        results = []
        for run in (model, plain):
            model[0].weight.grad = None
            simulate_format(run, forward=formats, backward=formats)(x).sum().backward()
            results.append(model[0].weight.grad)
        torch.testing.assert_close(*results)


def test_bad_settings():
    for call, error in (
        (lambda: ScaledFormat("x", E4M3, per=0), ArgumentError),
        (lambda: ScaledFormat("x", E4M3, per="row"), ArgumentError),
        (lambda: ScaledFormat("x", E4M3, scale="E5M2"), ArgumentError),
        (lambda: ScaledFormat("x", E4M3, per=32, history=4), ArgumentError),
        (lambda: Recipe({}), ArgumentTypeError),
        (lambda: Recipe({"a": "E4M3"}), ArgumentTypeError),
        (lambda: ProductFormats(weight="E9M9"), ArgumentError),
        (lambda: simulate_format(Headed(), recipe=Recipe({"neck": None})), ArgumentError),
        (
            lambda: simulate_format(Headed(), forward="E4M3", recipe=Recipe({"*": None})),
            ArgumentError,
        ),
        (lambda: simulate_format(torch.ones(2), forward="E4M3", measure=True), ArgumentTypeError),
        (
            lambda: simulate_format(torch.ones(2), forward=ScaledFormat("x", E4M3, history=2)),
            UnsupportedError,
        ),
    ):
        with pytest.raises(error):
            call()
