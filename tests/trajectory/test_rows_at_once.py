"""Jacobians of torch.autograd.functional whose rows or columns are one batch: `is_grads_batched`.

Its vmap is not that of `torch.func`, knows fewer operations and lies above autograd.
"""

import pytest
import torch
from torch.autograd.functional import hessian, jacobian

from pullback.trajectory import (
    Limits,
    State,
    bspline,
    differentiate,
    integrate,
    minimum_acceleration,
    minimum_jerk,
    minimum_time,
    quintic,
)

F64 = {"dtype": torch.float64}
POINTS = torch.tensor([[0.0, 0.0], [1.0, -0.5], [0.3, 0.8], [0.9, 0.1]], **F64)
TIMES = torch.tensor([0.0, 1.0, 2.0, 2.9], **F64)
SAMPLES = torch.cos(torch.arange(28.0, **F64)).view(2, 7, 2)
AT = torch.tensor([0.1, 0.7], **F64)
SLOW = Limits(velocity=1.9)
TABLE = {
    "positions": (lambda v: differentiate(v, 0.3).jerk, SAMPLES),
    "a step": (lambda v: differentiate(SAMPLES, v).jerk, torch.tensor(0.3, **F64)),
    "steps": (lambda v: differentiate(SAMPLES, v).velocity, torch.full((6,), 0.3, **F64)),
    "steps of each": (lambda v: differentiate(SAMPLES, v).jerk, torch.full((2, 6), 0.3, **F64)),
    "steps backward": (
        lambda v: differentiate(SAMPLES, v, scheme="backward").velocity,
        torch.full((2, 6), 0.3, **F64),
    ),
    "a start": (
        lambda v: differentiate(SAMPLES, 0.3, start=State(velocity=v)).jerk,
        torch.tensor([1.0, -2.0], **F64),
    ),
    "controls": (
        lambda v: integrate(v, 0.3, start=State(position=0.0, velocity=0.0)).position,
        SAMPLES,
    ),
    "steps of controls": (
        lambda v: integrate(SAMPLES, v, start=State(position=0.0, velocity=0.0)).position,
        torch.full((2, 7), 0.3, **F64),
    ),
    "points": (lambda v: minimum_jerk(v, TIMES, samples=9).velocity, POINTS),
    "times": (lambda v: minimum_jerk(POINTS, v, samples=9).velocity, TIMES),
    "a duration": (
        lambda v: minimum_jerk(POINTS[:2], duration=v, samples=9).velocity,
        torch.tensor(2.0, **F64),
    ),
    "points within limits": (
        lambda v: minimum_jerk(v, TIMES, samples=12, limits=SLOW).velocity,
        POINTS,
    ),
    "times within limits": (
        lambda v: minimum_jerk(POINTS, v, samples=12, limits=SLOW).velocity,
        TIMES,
    ),
    "times of acceleration": (
        lambda v: minimum_acceleration(POINTS, v, samples=12).velocity,
        TIMES,
    ),
    "times of a fast motion": (
        lambda v: minimum_time(POINTS, Limits(velocity=2.0), times=v, samples=9).times,
        TIMES,
    ),
    "times of a quintic": (lambda v: quintic(POINTS, v).sample(AT).velocity, TIMES),
    "control points": (lambda v: bspline(v, 2.0).sample(AT).velocity, SAMPLES[0]),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_the_jacobian(name, strategy):
    function, value = TABLE[name]
    found = jacobian(function, value, vectorize=True, strategy=strategy)
    torch.testing.assert_close(found, jacobian(function, value))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_the_hessian(name, strategy):
    function, value = TABLE[name]

    def cost(value):
        return function(value).square().sum()

    found = hessian(cost, value, vectorize=True, outer_jacobian_strategy=strategy)
    torch.testing.assert_close(found, hessian(cost, value), rtol=1e-6, atol=1e-7)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", TABLE)
def test_a_jacobian_is_differentiated(name):
    function, value = TABLE[name]
    found = []
    for at_once in (True, False):
        x = value.clone().requires_grad_()
        rows = jacobian(function, x, vectorize=at_once, create_graph=True)
        # A sum with what is differentiated: a lost history would be a wrong number, and no error.
        found.append(torch.autograd.grad(rows.square().sum() + x.sum(), x)[0])
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-7)
