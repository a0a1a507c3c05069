"""How often the evidence accuses a right derivative, and how often it finds a wrong one.

A verdict needs two comparisons that disagree with backward, each by two first steps that have no
step in common (`pullback.conformance.evidence._evidence`). One alone is wrong in less than one of a
thousand: none of 3,000 in `make fuzz`, whose upper end at 95 % is 3 of 3,000 (the rule of three).
Two that are independent are wrong in less than one of a million.
"""

import pytest
import torch
from tests.fuzzing import examples

from pullback.conformance.evidence import _derivative
from pullback.conformance.evidence._derivative import decide, try_derivative
from pullback.conformance.evidence._evidence import FIRST_STEP, slopes
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.probing._prepare import prepare

# In `make fuzz` 3,000 comparisons take a minute or two, on a busy machine more.
pytestmark = [pytest.mark.breadth, pytest.mark.timeout(1500)]

PARTS = (
    torch.sin,
    torch.tanh,
    torch.nn.functional.gelu,
    torch.nn.functional.softplus,
    lambda x: x * torch.sigmoid(x),
    lambda x: (x / 4).exp(),
    lambda x: (1 + x * x).log(),
    lambda x: x.softmax(-1),
    lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 0.1).sqrt(),
    lambda x: x @ (x.mT @ x) / x.numel(),
    lambda x: x.cumsum(-1) / 4,
    lambda x: x.square().sum(-1).sqrt(),
)
TRIALS = 10
SEEDS = 300 if examples(1) > 1 else 4


class Times(torch.autograd.Function):
    """The identity, whose gradient is wrong by a factor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.factor, None


def smooth(seed, factor=1.0, dtype=torch.float64):
    """A random composition of what kernels compute, looked at as a check does."""
    drawn = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(PARTS), (3,), generator=drawn).tolist()
    rows, columns = torch.randint(1, 9, (2,), generator=drawn).tolist()

    def compute(x):
        for k in chosen:
            x = PARTS[k](x) if x.ndim > 1 or k < 9 else x
        return Times.apply(x, factor)

    x = torch.randn(rows, columns + 1, generator=drawn, dtype=torch.float64)
    probe = prepare(Subject.of(compute), Arguments.of((x.to(dtype),)), seed)
    if dtype == torch.float32:
        given = Arguments.of((x.float(),)).with_differentiable((0,))
        probe = type(probe)(probe.subject, given, given, seed=seed, outputs=probe.outputs)
    return probe


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_right_derivative_is_not_accused_by_one_witness(dtype, monkeypatch):
    monkeypatch.setattr(_derivative, "OTHER_STEP", FIRST_STEP)
    found = [
        try_derivative(smooth(seed, dtype=dtype), number).match
        for seed in range(SEEDS)
        for number in range(TRIALS)
    ]
    assert "mismatch" not in found
    assert found.count("match") > 0.8 * len(found)


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float64, 1e-3), (torch.float32, 3e-2)], ids=["float64", "float32"]
)
def test_a_wrong_factor_is_found(dtype, error):
    found = []
    for seed in range(SEEDS):
        probe = smooth(seed, 1 + error * (-1) ** seed, dtype)
        trial = decide(lambda number, probe=probe: try_derivative(probe, number))
        if trial is not None:  # else its derivative is zero, or below what rounding leaves
            found.append(trial.match == "mismatch")
    assert len(found) > 0.95 * SEEDS - 1
    # 0.99, as far as so few can tell it: 293 of 296 in float32, all in float64.
    assert sum(found) >= 0.985 * len(found)


def test_the_error_of_a_sum_is_that_of_a_random_walk():
    """Whatever rounding does within its bound, six errors are never reached (Hoeffding: 3e-8)."""
    drawn = torch.Generator().manual_seed(0)
    eps, n = torch.finfo(torch.float64).eps, 64
    far = []
    for _ in range(examples(40)):
        size, slope = torch.randn(2, n, generator=drawn, dtype=torch.float64)

        def noisy(t, size=size, slope=slope):
            sign = torch.rand(n, generator=drawn, dtype=torch.float64).round() * 2 - 1
            return size + slope * t + 2 * eps * size * sign  # the worst that the bound allows

        signs = torch.rand(n, generator=drawn, dtype=torch.float64).round() * 2 - 1
        weights = signs * (0.5 + torch.rand(n, generator=drawn, dtype=torch.float64))
        found = slopes(noisy)
        weights = weights * found.settled
        estimate = found.weigh(weights)
        far.append(abs(estimate.value - float((weights * slope).sum())) / estimate.error)
    assert max(far) < 3
    assert torch.tensor(far).square().mean().sqrt() < 1
