"""Activation checkpointing around a whole simulated model, and what it measures within one."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pullback.errors import UnsupportedError
from pullback.tracking.formats import E4M3, ScaledFormat, simulate_format

DELAYED = ScaledFormat("delayed", E4M3, history=4)


class Part(nn.Module):
    """Runs its layers within a checkpoint, or without."""

    def __init__(self, checkpointed=False):
        super().__init__()
        layers = nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)
        self.layers, self.checkpointed = nn.Sequential(*layers), checkpointed

    def forward(self, x):
        if self.checkpointed:
            return checkpoint(self.layers, x, use_reentrant=False)
        return self.layers(x)


def step(reentrant=None, within=False, generator=None, runs=1, **settings):
    """The output, gradients and noise of one step, by the kind of checkpoint around the model."""
    torch.manual_seed(0)
    model = Part(within)
    x = torch.randn(3, 8, requires_grad=True)
    settings = {"forward": "E2M1", "backward": "E2M1", **settings}
    simulated = simulate_format(model, generator=generator, **settings)

    def run(x):
        return sum(simulated(x) for _ in range(runs))

    y = run(x) if reentrant is None else checkpoint(run, x, use_reentrant=reentrant)
    y.square().sum().backward()
    noise = simulated.noise() if simulated.meter is not None else []
    return [y.detach(), x.grad, *(each.grad for each in model.parameters())], noise


@pytest.mark.parametrize("known", ["E2M1", "MXFP4"])
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(
    ("reentrant", "rounding"), [(False, "nearest"), (True, "nearest"), (False, "stochastic")]
)
def test_a_checkpoint_around_the_model_changes_nothing(reentrant, rounding, within, known):
    settings = {"rounding": rounding, "forward": known, "runs": 2}
    expected, _ = step(**settings)
    got, _ = step(reentrant, within=within, **settings)
    assert all(map(torch.equal, got, expected))


@pytest.mark.parametrize(("reentrant", "within"), [(False, False), (True, False), (None, True)])
def test_what_is_computed_again_is_measured_once(reentrant, within):
    _, expected = step(measure=True)
    _, got = step(reentrant, within=within, measure=True)
    assert {(each.module, each.role): (each.count, each.decibels) for each in got} == {
        (each.module, each.role): (each.count, each.decibels) for each in expected
    }


@pytest.mark.parametrize(
    ("reentrant", "settings", "match"),
    [
        (False, {"forward": DELAYED}, "does not delay"),
        (True, {"forward": DELAYED}, "does not delay"),
        (False, {"rounding": "stochastic", "generator": torch.Generator()}, "same noise"),
        (True, {"rounding": "stochastic", "generator": torch.Generator()}, "same noise"),
        (True, {"rounding": "stochastic", "forward": "MXFP4"}, "same noise"),
    ],
)
def test_what_would_be_computed_again_in_another_way_is_refused(reentrant, settings, match):
    with pytest.raises(UnsupportedError, match=match):
        step(reentrant, **settings)


def test_a_generator_that_draws_nothing_is_no_reason_to_refuse():
    expected, _ = step()
    got, _ = step(False, generator=torch.Generator())
    assert all(map(torch.equal, got, expected))
