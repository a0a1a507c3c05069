"""`FPFormat`, `simulate_format` and `simulate_fp8` against recorded results and by hand."""

import copy
import logging

import pytest
import torch
from tests.compat.test_unit_scaling import RECORDED
from torch import nn
from torch.nn import functional

from pullback.compat import unit_scaling as us


@pytest.mark.parametrize("bits", [(4, 3), (5, 2), (2, 1), (3, 0)], ids=str)
def test_the_numbers_of_a_format(bits):
    known = us.FPFormat(*bits, rounding="nearest")
    expected = RECORDED["quantise"][f"{bits[0]}{bits[1]}p"]
    assert [
        known.bits, known.max_absolute_value, known.min_absolute_normal,
        known.min_absolute_subnormal, str(known),
    ] == expected  # fmt: skip
    assert str(us.FPFormat(*bits)).endswith("-SR")


@pytest.mark.parametrize("bits", [(4, 3), (2, 1)], ids=str)
@pytest.mark.parametrize(
    ("suffix", "keywords"), [("", {}), ("s", {"srbits": 4}), ("n", {"rounding": "nearest"})]
)
def test_rounding_is_bit_equal_to_the_recorded(bits, suffix, keywords):
    torch.manual_seed(2)
    x = torch.randn(200) * 3
    torch.manual_seed(3)
    got = us.FPFormat(*bits, **keywords).quantise(x)
    assert got.tolist() == RECORDED["quantise"][f"{bits[0]}{bits[1]}{suffix}"]


def test_the_values_of_small_formats():
    x = torch.linspace(-4, 4, 100)
    values = {sign * v for v in (0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3) for sign in (1, -1)}
    assert set(us.FPFormat(2, 1).quantise_fwd(x).tolist()) == values
    leaf = torch.randn(100, requires_grad=True)
    us.FPFormat(2, 1).quantise_bwd(leaf * 1).backward(x)
    assert set(leaf.grad.tolist()) == values


def test_ties_go_to_even():
    nearest = us.FPFormat(4, 3, rounding="nearest")
    x = torch.tensor([1.0625, 1.1875, -1.0625, -1.1875])
    assert nearest.quantise(x).tolist() == [1.0, 1.25, -1.0, -1.25]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_every_dtype(dtype):
    x = torch.randn(50).to(dtype)
    got = us.FPFormat(4, 3, rounding="nearest").quantise(x)
    assert got.dtype == dtype
    single = us.FPFormat(4, 3, rounding="nearest").quantise(x.float())
    assert torch.equal(got.float(), single)


@pytest.mark.parametrize("srbits", [0, 13])
def test_stochastic_rounding_is_unbiased(srbits):
    torch.manual_seed(0)
    got = us.FPFormat(2, 1, srbits=srbits).quantise(torch.full((10_000,), -1.35))
    assert set(got.tolist()) == {-1.0, -1.5}
    assert abs(float(got.mean()) + 1.35) < 3 * 0.5 * (0.7 * 0.3 / 10_000) ** 0.5


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, t):
        return self.linear(t)


NEAREST = us.FPFormat(4, 3, "nearest"), us.FPFormat(5, 2, "nearest")


@pytest.mark.parametrize("root", [Linear, lambda: nn.Linear(16, 8)], ids=["module", "torch"])
def test_a_linear_layer_by_hand(root, caplog):
    caplog.set_level(logging.INFO)
    torch.manual_seed(0)
    model = root()
    before = copy.deepcopy(model.state_dict())
    x, g = torch.randn(5, 16, requires_grad=True), torch.randn(5, 8)
    simulated = us.transforms.simulate_format(model, *NEAREST)
    output = simulated(x)
    weight, bias = model.state_dict().values()
    rounded_x, rounded_w = NEAREST[0].quantise(x), NEAREST[0].quantise(weight)
    torch.testing.assert_close(output, functional.linear(rounded_x, rounded_w, bias))
    output.backward(g)
    rounded_g = NEAREST[1].quantise(g)
    torch.testing.assert_close(x.grad, rounded_g @ rounded_w)
    parameters = dict(simulated.named_parameters())
    [grad] = [p.grad for name, p in parameters.items() if name.endswith("weight")]
    torch.testing.assert_close(grad, rounded_g.T @ rounded_x)
    assert "quantising function" in caplog.text
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in model.parameters())


def test_attention_by_hand():
    class Attention(nn.Module):
        def forward(self, q, k, v):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    tensors = [torch.randn(2, 6, 4) for _ in range(3)]
    got = us.transforms.simulate_format(Attention(), *NEAREST)(*tensors)
    expected = Attention()(*(NEAREST[0].quantise(tensor) for tensor in tensors))
    torch.testing.assert_close(got, expected)


def test_fp8_changes_every_gradient():
    model = Linear()
    x = torch.randn(20, 16, requires_grad=True)
    expected = model(x)
    expected.sum().backward()
    other = x.detach().clone().requires_grad_()
    simulated = us.simulate_fp8(model)
    output = simulated(other)
    output.sum().backward()
    assert not torch.equal(output, expected)
    assert not torch.equal(other.grad, x.grad)
    assert not torch.equal(simulated.linear.weight.grad, model.linear.weight.grad)
    assert float((output - expected).detach().abs().max()) < 0.5


@pytest.mark.parametrize(
    ("bits", "dtype", "unit"),
    [
        ((8, 23), torch.float64, 2.0**-23),
        ((8, 22), torch.float64, 2.0**-22),
        ((5, 22), torch.float32, 2.0**-37),  # subnormal there
    ],
    ids=str,
)
def test_more_bits_to_round_away_than_random_ones_leave_no_bias(bits, dtype, unit):
    torch.manual_seed(0)
    start = 1.0 if dtype == torch.float64 else 2.0**-20
    steps = torch.linspace(0, 1, 10_001, dtype=dtype)[:-1]
    got = us.FPFormat(*bits).quantise(start + steps * unit)
    assert abs(float(((got.double() - start) / unit - steps.double()).mean())) < 0.02


def test_random_bits_do_not_follow_the_default_dtype():
    x = torch.randn(1000)
    torch.manual_seed(0)
    expected = us.FPFormat(4, 3).quantise(x)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        torch.manual_seed(0)
        got = us.FPFormat(4, 3).quantise(x)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(got, expected)
