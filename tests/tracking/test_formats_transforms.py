"""What a simulated model measures and remembers under the transforms of `torch.func`."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from pullback.errors import UnsupportedError
from pullback.tracking.formats import E4M3, ScaledFormat, simulate_format

DELAYED = ScaledFormat("delayed", E4M3, history=4)


def simulated(**settings):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    settings = {"forward": "E2M1", "backward": "E5M2", "measure": True, **settings}
    return simulate_format(layers, **settings), torch.randn(3, 2, 4)


def loss(model, x, parameters=None):
    given = dict(model.named_parameters()) if parameters is None else parameters
    return functional_call(model, given, (x,)).square().sum()


def rows(model):
    return {
        (each.module, each.role): (each.count, round(each.decibels, 3)) for each in model.noise()
    }


def take(way, model, x):
    """The gradient of a loss for a batch of examples, each way the same."""
    f = lambda x: loss(model, x)  # noqa: E731
    if way == "plain":
        return torch.autograd.grad(f(x.requires_grad_()), x)[0]
    if way == "outside":
        return torch.autograd.grad(torch.vmap(f)(x.requires_grad_()).sum(), x)[0]
    if way == "vjp":
        return torch.func.vjp(f, x)[1](torch.ones(()))[0]
    return {
        "grad": torch.func.grad(f),
        "vmap of grad": torch.vmap(torch.func.grad(f)),
        "vmap twice": torch.vmap(torch.vmap(torch.func.grad(f))),
        "grad of vmap": torch.func.grad(lambda x: torch.vmap(f)(x).sum()),
    }[way](x)


WAYS = ("outside", "vjp", "grad", "vmap of grad", "vmap twice", "grad of vmap")


@pytest.mark.parametrize("way", WAYS)
def test_noise_is_that_of_the_whole_batch(way):
    model, x = simulated()
    expected = take("plain", model, x)
    known = rows(model)
    model, x = simulated()
    torch.testing.assert_close(take(way, model, x), expected)
    assert rows(model) == known
    assert loss(model, x.detach()).isfinite()
    copy.deepcopy(model)


@pytest.mark.parametrize("way", WAYS)
def test_delayed_scales_are_those_of_the_whole_batch(way):
    known = []
    for each in ("plain", way):
        model, x = simulated(forward=DELAYED, backward=DELAYED, measure=False)
        for scale in (1, 10):
            take(each, model, (scale * x).detach())
        known.append([*model.products.seen.values()])
        assert loss(model, x.detach()).isfinite()
        copy.deepcopy(model)
    assert len(known[0]) == 6
    # A scale by example differs from that of the batch in the first pass alone.
    for one, other in zip(*known, strict=True):
        assert type(other) is torch.Tensor
        assert other.shape == (2,)
        assert not other.requires_grad
        torch.testing.assert_close(one[:1], other[:1], rtol=0.1, atol=0)


def test_weights_by_example_are_measured_all():
    model, x = simulated()
    weights = {name: torch.stack([p, 2 * p]) for name, p in model.named_parameters()}
    torch.vmap(lambda given: loss(model, x, given))(
        {name: each.detach() for name, each in weights.items()}
    )
    assert rows(model)["0", "weight"][0] == 32
    with torch.no_grad():
        stochastic, x = simulated(rounding="stochastic")
        torch.vmap(stochastic, in_dims=1, randomness="different")(x)
        assert rows(stochastic)["0", "weight"][0] == 32
        assert rows(stochastic)["0", "activation"][0] == x.numel()


@pytest.mark.parametrize("settings", [{"rounding": "stochastic"}, {"backward": "E5M2 tensor"}])
def test_gradients_rounded_by_example_and_taken_outside_are_not_measured(settings):
    model, x = simulated(**settings)
    with pytest.raises(UnsupportedError, match="for each example"):
        torch.vmap(model, randomness="different")(x)
    with torch.no_grad():
        torch.vmap(model, randomness="different")(x)
    copy.deepcopy(model)
