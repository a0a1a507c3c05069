"""A Function that draws from a generator of its own: said once, and judged with it put back."""

import random

import numpy as np
import pytest
import torch
from tests.specimens._specimen import normal

from pullback.conformance import check
from pullback.conformance.clauses import CLAUSES
from pullback.conformance.inputs._held import own_generators

pytestmark = pytest.mark.usefixtures("no_edits")

CHEAP = [c.id for c in CLAUSES if c.id not in ("compile", "compositions", "cuda-graph")]
OF_TORCH, OF_NUMPY = torch.Generator().manual_seed(1), np.random.default_rng(1)
OF_PYTHON = {"source": random.Random(1)}
UNSEEDED = random.SystemRandom()


def by_torch(x):
    return torch.rand(x.shape, dtype=x.dtype, generator=OF_TORCH)


def by_numpy(x):
    return torch.from_numpy(OF_NUMPY.random(x.shape)).to(x.dtype)


def by_python(x):
    return torch.full_like(x, OF_PYTHON["source"].random())


def by_nobody(x):
    return torch.full_like(x, UNSEEDED.random())


def noisy(draw, factor=1.0):
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            noise = draw(x.detach()) + 0.5
            ctx.save_for_backward(noise, x)
            return noise * x.sin()

        @staticmethod
        def backward(ctx, cotangent):
            noise, x = ctx.saved_tensors
            return factor * noise * x.cos() * cotangent

    return Noisy


@pytest.mark.sampled(2)
@pytest.mark.parametrize("draw", [by_torch, by_numpy, by_python, by_nobody])
def test_it_is_the_one_finding(draw):
    report = check(noisy(draw), normal(3, 4), clauses=CHEAP)
    assert [f.clause for f in report if f.verdict.is_bad] == ["deterministic"], str(report)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("draw", [by_torch, by_numpy, by_python])
def test_what_is_wrong_beside_is_found_all_the_same(draw):
    report = check(noisy(draw, 1.5), normal(3, 4), clauses=["derivative", "deterministic"])
    assert [f.verdict for f in report] == ["broken", "broken"]


def test_the_generator_is_left_as_it_was():
    before = OF_TORCH.get_state()
    check(noisy(by_torch), normal(3), clauses=["derivative", "deterministic"])
    assert torch.equal(OF_TORCH.get_state(), before)


def test_a_generator_is_found_on_a_class_and_in_a_closure():
    source = torch.Generator()

    class Holder:
        def __init__(self):
            self.kept = [np.random.RandomState(1)]

    class Keeps(torch.autograd.Function):
        mine = torch.Generator()
        other = Holder()

        @staticmethod
        def forward(ctx, x):
            return x + torch.rand(x.shape, generator=source)

    assert len(own_generators(Keeps)) == 3


class AddsNoise(torch.autograd.Function):
    """Noise as large as a scale; its gradient is given `saved`, the noise or the mean."""

    saved = "noise"

    @staticmethod
    def forward(ctx, mean, scale):
        noise = torch.randn_like(mean)
        ctx.save_for_backward(noise if AddsNoise.saved == "noise" else mean)
        return mean + scale * noise

    @staticmethod
    def backward(ctx, cotangent):
        (factor,) = ctx.saved_tensors
        return cotangent, cotangent * factor


@pytest.mark.parametrize("saved", ["noise", "mean"])
def test_arguments_drawn_with_the_seed_of_the_check_are_not_its_noise(saved, monkeypatch):
    monkeypatch.setattr(AddsNoise, "saved", saved)
    generator = torch.Generator().manual_seed(0)
    how = {"generator": generator, "dtype": torch.float64}
    inputs = (torch.randn(5, 4, **how), torch.randn(5, 4, **how))
    report = check(AddsNoise, *inputs, clauses=["derivative", "memory"], seed=0)
    verdicts = [finding.verdict.value for finding in report.findings]
    assert verdicts[0] == ("holds" if saved == "noise" else "broken"), report
    assert verdicts[1] == "holds", report
