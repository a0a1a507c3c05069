"""`simulate_format` on tensors and on models."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import pullback.gradients as shaping
from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.tracking.formats import E2M1, E4M3, E5M2, FORMATS, round_values, simulate_format


def test_a_tensor_in_both_directions():
    x = torch.randn(50, dtype=torch.float64, requires_grad=True)
    g = torch.randn(50, dtype=torch.float64)
    y = simulate_format(x, forward="E4M3", backward="E5M2")
    assert torch.equal(y, round_values(x.detach(), E4M3))
    y.backward(g)
    assert torch.equal(x.grad, round_values(g, E5M2))


def test_one_direction_leaves_the_other():
    x = torch.randn(50, requires_grad=True)
    g = torch.randn(50)
    value = simulate_format(x, forward=E4M3)
    assert torch.equal(torch.autograd.grad(value, x, g)[0], g)
    gradient = simulate_format(x, backward=E4M3)
    assert gradient.data_ptr() == x.data_ptr()
    assert torch.equal(torch.autograd.grad(gradient, x, g)[0], round_values(g, E4M3))


@pytest.mark.parametrize("known", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_stochastic_rounding_of_both(known, dtype):
    x = torch.full((20_000,), 1.3, dtype=dtype, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    y = simulate_format(
        x, forward=known, backward=known, rounding="stochastic", generator=generator
    )
    assert y.dtype == dtype
    (first,) = torch.autograd.grad(y, x, torch.full_like(x, 1.3), retain_graph=True)
    (second,) = torch.autograd.grad(y, x, torch.full_like(x, 1.3))
    assert torch.equal(first, second)
    for got in (y.detach(), first):
        assert len(got.unique()) <= 2
        assert abs(float(got.double().mean()) - 1.3) < 0.02


def test_under_the_transforms():
    x = torch.randn(4, 5, dtype=torch.float64)

    def loss(t):
        return (simulate_format(t, forward=E4M3, backward=E5M2) ** 3).sum()

    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(x), expected)
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(x), expected)
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    (got,) = torch.autograd.grad(compiled(leaf), leaf)
    torch.testing.assert_close(got, expected)
    tangent = torch.randn_like(x)
    out = torch.func.jvp(lambda t: simulate_format(t, forward=E4M3), (x,), (tangent,))[1]
    assert torch.equal(out, tangent)
    with pytest.raises(UnsupportedError):
        torch.func.jvp(lambda t: simulate_format(t, backward=E4M3), (x,), (tangent,))


class Products(nn.Module):
    """Each product on its own."""

    def __init__(self, product):
        super().__init__()
        self.product = product

    def forward(self, *tensors):
        return self.product(*tensors)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


PRODUCTS = {
    "linear": (functional.linear, (normal(4, 3), normal(5, 3))),
    "matmul": (torch.matmul, (normal(4, 3), normal(3, 5))),
    "operator": (lambda a, b: a @ b, (normal(4, 3), normal(3, 5))),
    "method": (lambda a, b: a.matmul(b), (normal(4, 3), normal(3, 5))),
    "mm": (torch.mm, (normal(4, 3), normal(3, 5))),
    "bmm": (torch.bmm, (normal(2, 4, 3), normal(2, 3, 5))),
    "mv": (torch.mv, (normal(4, 3), normal(3))),
    "dot": (torch.dot, (normal(3), normal(3))),
    "einsum": (lambda a, b: torch.einsum("ij,jk->ik", a, b), (normal(4, 3), normal(3, 5))),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 1), (normal(4, 3), normal(3, 5))),
    "conv1d": (functional.conv1d, (normal(2, 3, 8), normal(4, 3, 3))),
    "conv2d": (functional.conv2d, (normal(2, 3, 8, 8), normal(4, 3, 3, 3))),
    "conv3d": (functional.conv3d, (normal(1, 2, 4, 4, 4), normal(3, 2, 3, 3, 3))),
    "conv_transpose2d": (functional.conv_transpose2d, (normal(2, 3, 5, 5), normal(3, 4, 3, 3))),
    "attention": (
        functional.scaled_dot_product_attention,
        (normal(2, 4, 3), normal(2, 5, 3), normal(2, 5, 3)),
    ),
    "keywords": (
        lambda a, b: functional.linear(input=a, weight=b),
        (normal(4, 3), normal(5, 3)),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_each_product(name):
    product, tensors = PRODUCTS[name]
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    output = simulate_format(Products(product), forward=E4M3, backward=E5M2)(*leaves)
    rounded = [round_values(tensor, E4M3).requires_grad_() for tensor in tensors]
    expected = product(*rounded)
    torch.testing.assert_close(output, expected)
    g = torch.randn_like(output)
    got = torch.autograd.grad(output, leaves, g)
    torch.testing.assert_close(got, torch.autograd.grad(expected, rounded, round_values(g, E5M2)))


@pytest.mark.parametrize("name", ["addmm", "baddbmm", "bias"])
def test_the_added_term_is_not_rounded(name):
    bias, a, b = normal(5), normal(2, 4, 3), normal(2, 3, 5)
    model = {
        "addmm": lambda: torch.addmm(bias, a[0], b[0]),
        "baddbmm": lambda: torch.baddbmm(bias, a, b),
        "bias": lambda: functional.linear(a, b[0].T, bias),
    }[name]
    got = simulate_format(Products(model), forward=E2M1)() - bias
    first, second = round_values(a, E2M1), round_values(b, E2M1)
    expected = {
        "addmm": lambda: first[0] @ second[0],
        "baddbmm": lambda: first @ second,
        "bias": lambda: first @ second[0],
    }[name]()
    torch.testing.assert_close(got, expected)


def test_the_products_inside_of_attention_layers_count():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    x = normal(2, 5, 8)
    expected, _ = layer(x, x, x, need_weights=False)
    simulated = simulate_format(layer, forward=E2M1)
    got, _ = simulated(x, x, x, need_weights=False)
    assert float((got - expected).detach().abs().max()) > 1e-3
    # By hand: the packed projection, attention, and the last projection.
    w = round_values(layer.in_proj_weight.detach(), E2M1)
    q, k, v = (round_values(x, E2M1) @ w.T + layer.in_proj_bias).chunk(3, -1)
    q, k, v = (t.reshape(2, 5, 2, 4).transpose(1, 2) for t in (q, k, v))
    q, k, v = (round_values(t.detach(), E2M1) for t in (q, k, v))
    mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 8)
    w = round_values(layer.out_proj.weight.detach(), E2M1)
    by_hand = round_values(mixed, E2M1) @ w.T + layer.out_proj.bias
    torch.testing.assert_close(got, by_hand)
    layer.eval()
    with torch.no_grad():
        again, _ = simulated(x, x, x, need_weights=False)
    torch.testing.assert_close(again, got)


def test_a_transformer_layer_trains():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    before = copy.deepcopy(layer.state_dict())
    model = simulate_format(layer, forward="E4M3", backward="E5M2", rounding="stochastic")
    assert [id(p) for p in model.parameters()] == [id(p) for p in layer.parameters()]
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimiser.zero_grad()
        model(torch.randn(2, 5, 8)).square().mean().backward()
        optimiser.step()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    assert not torch.equal(before["linear1.weight"], layer.linear1.weight)


def test_the_model_itself_is_left_alone():
    layer = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    before = layer(x)
    simulate_format(layer, forward=E2M1)(x)
    assert torch.equal(layer(x), before)
    assert not layer._forward_hooks


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell], ids=lambda c: c.__name__)
def test_products_out_of_reach_are_refused_by_name(layer):
    with pytest.raises(UnsupportedError, match="cannot reach"):
        simulate_format(layer(3, 3), forward=E4M3)(torch.randn(2, 3))


def test_compiling_a_simulated_model_breaks_the_graph_by_name():
    x = torch.randn(4, 2)
    simulated = simulate_format(nn.Linear(2, 2), forward=E4M3)
    torch._dynamo.reset()
    compiled = torch.compile(simulated, backend="eager")
    torch.testing.assert_close(compiled(x), simulated(x))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="simulated model is not compiled"):
        torch.compile(simulated, backend="eager", fullgraph=True)(x)


def test_other_functions_of_this_package_run_inside():
    model = nn.Sequential(nn.Linear(3, 3), shaping.ScaleGradient(0.5))
    x = torch.randn(2, 3, requires_grad=True)
    simulate_format(model, forward=E4M3)(x).sum().backward()
    assert x.grad is not None


def test_bad_settings():
    x = torch.ones(2)
    for call, error in (
        (lambda: simulate_format(x), ArgumentError),
        (lambda: simulate_format(x, forward="fp7"), ArgumentError),
        (lambda: simulate_format(x, forward=E4M3, rounding="up"), ArgumentError),
        (lambda: simulate_format(x, forward=E4M3, overflow="wrap"), ArgumentError),
        (lambda: simulate_format(3.0, forward=E4M3), ArgumentTypeError),
        (lambda: simulate_format(torch.ones(2).long(), forward=E4M3), ArgumentTypeError),
    ):
        with pytest.raises(error):
            call()


def test_the_printed_form():
    text = repr(simulate_format(nn.Linear(2, 2), forward="E4M3", backward="E5M2"))
    assert "weight=E4M3, activation=E4M3, gradient=E5M2" in text
