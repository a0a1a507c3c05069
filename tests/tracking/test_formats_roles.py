"""Weights keep their format where torch does not tell what a view was made of."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from pullback.tracking.formats import ProductFormats, Recipe, round_values, simulate_format
from pullback.tracking.formats._round import find_format

WEIGHT, ACTIVATION = find_format("E2M1"), find_format("E4M3")
RECIPE = Recipe({"*": ProductFormats(WEIGHT, ACTIVATION)})


class Model(nn.Module):
    """Multiplies by views of its parameter."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return (x @ self.w.T) @ self.w[:2].T


def by_hand(x, w):
    for factor in (w.T, w[:2].T):
        x = round_values(x, ACTIVATION) @ round_values(factor, WEIGHT)
    return x


def model_and_values():
    torch.manual_seed(0)
    model = Model()
    return model, simulate_format(model, recipe=RECIPE), torch.randn(2, 4)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_in_each_mode_of_gradients(mode):
    model, simulated, x = model_and_values()
    with mode():
        torch.testing.assert_close(simulated(x), by_hand(x, model.w))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_of_plain_tensors_in_the_place_of_parameters(mode):
    _, simulated, x = model_and_values()
    with mode():
        given = torch.randn(4, 4)
        got = functional_call(simulated, {"model.w": given}, (x,))
        torch.testing.assert_close(got, by_hand(x, given))
        together = torch.randn(6, 4)  # the rest of their storage is no parameter
        w, x = together[:4], together[4:]
        torch.testing.assert_close(functional_call(simulated, {"model.w": w}, (x,)), by_hand(x, w))
        together = torch.randn(4, 8)
        w, x = together[:, :4], together[1:3, 4:]
        torch.testing.assert_close(functional_call(simulated, {"model.w": w}, (x,)), by_hand(x, w))


def gradients(model, simulated, x):
    return torch.autograd.grad(simulated(x).square().sum(), (x, model.w))


def loss(simulated, w, x):
    return functional_call(simulated, {"model.w": w}, (x,)).square().sum()


def test_under_transforms():
    model, simulated, x = model_and_values()
    expected = gradients(model, simulated, x.requires_grad_())
    w, x = model.w.detach(), x.detach()
    torch.testing.assert_close(
        torch.func.grad(lambda x: simulated(x).square().sum())(x), expected[0]
    )
    got = torch.func.grad(lambda x, w: loss(simulated, w, x), (0, 1))(x, w)
    torch.testing.assert_close(got, expected)
    weights = torch.stack([w, -2 * w])
    several = torch.vmap(lambda w: functional_call(simulated, {"model.w": w}, (x,)))(weights)
    for got, each in zip(several, weights, strict=True):
        torch.testing.assert_close(got, by_hand(x, each))
    rows = torch.vmap(lambda x: simulated(x.unsqueeze(0)).squeeze(0))(x)
    torch.testing.assert_close(rows, by_hand(x, w))
    several = torch.vmap(torch.func.grad(lambda w: loss(simulated, w, x)))(weights)
    torch.testing.assert_close(several[0], expected[1])


def test_a_model_that_calls_a_part_with_other_weights():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Model()

        def forward(self, x):
            return functional_call(self.part, {"w": 2 * self.part.w}, (x,))

    model, x = Adapted(), torch.randn(2, 4)
    got = simulate_format(model, recipe=RECIPE)(x)
    torch.testing.assert_close(got, by_hand(x, 2 * model.part.w))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_of_a_parameter_that_is_given_from_outside(mode):
    class Given(nn.Module):
        def forward(self, x, w):
            return x @ w.T

    x, w = torch.randn(2, 4), nn.Parameter(torch.randn(4, 4))
    with mode():
        got = simulate_format(Given(), recipe=RECIPE)(x, w)
        expected = round_values(x, ACTIVATION) @ round_values(w, WEIGHT).T
        torch.testing.assert_close(got, expected)


def test_noise_is_measured_by_role():
    model, x = Model(), torch.randn(2, 4)
    simulated = simulate_format(model, forward="E2M1", measure=True)
    with torch.inference_mode():
        simulated(x)
    assert {each.role: each.count for each in simulated.noise()} == {"activation": 16, "weight": 24}
