"""Motions through many points meet them: those near one another are what rounding is made of."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.trajectory import Limits, minimum_acceleration, minimum_jerk, minimum_time
from pullback.trajectory.kernels.states import _program


def wave(count: int) -> Tensor:
    return torch.linspace(0, 6.28, count, dtype=torch.float64)[:, None].sin()


def check_met(motion, points: Tensor) -> None:
    """By the polynomial of each step, to what rounding makes of how far it goes."""
    parts = motion.position, motion.velocity, motion.acceleration, motion.jerk
    step = motion.times[-1] / (motion.horizon - 1)
    places = torch.linspace(0, motion.horizon - 1, len(points), dtype=torch.float64)
    index = places.floor().long().clamp(max=motion.horizon - 2)
    s = (places - index)[:, None] * step
    p, v, a, j = (part[index] for part in parts)
    size = max(1.0, motion.position.abs().max().item())
    torch.testing.assert_close(
        p + s * (v + s / 2 * (a + s / 3 * j)), points, rtol=0, atol=1e-10 * size
    )


@pytest.mark.parametrize("plan", [minimum_jerk, minimum_acceleration])
@pytest.mark.parametrize(("count", "samples"), [(60, 64), (124, 130), (120, 256)])
def test_points_are_met(plan, count: int, samples: int) -> None:
    check_met(plan(wave(count), 10.0, samples=samples), wave(count))


def test_points_are_met_within_limits() -> None:
    free = minimum_jerk(wave(100), 10.0)
    limits = Limits(jerk=0.97 * free.jerk.abs().max().item())
    motion = minimum_jerk(wave(100), 10.0, limits=limits)
    check_met(motion, wave(100))
    assert motion.violations(limits)["jerk"].max() <= 0


def test_points_are_met_in_the_least_time() -> None:
    motion = minimum_time(wave(100), Limits(velocity=1.0))
    check_met(motion, wave(100))
    assert motion.position.abs().max() < 1.00001


def test_what_misses_its_points_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(_program, "_hold", lambda program: np.zeros(program.place.shape))
    with pytest.raises(ArgumentError, match="rounding leaves none that meets them"):
        minimum_jerk(wave(60), 10.0, samples=64)


def test_derivatives_are_those_of_a_linear_map() -> None:
    points = wave(60).requires_grad_()
    motion = minimum_jerk(points, 10.0, samples=64)
    weights = torch.randn(motion.position.shape, dtype=torch.float64)
    (found,) = torch.autograd.grad(motion.position, points, weights)
    along = wave(60).roll(7, 0)
    moved = minimum_jerk(along, 10.0, samples=64).position
    torch.testing.assert_close((found * along).sum(), (weights * moved).sum(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("times", [None, "each"])
def test_a_joint_by_itself_moves_as_beside_others(times) -> None:
    # By itself its motion is found at once, beside others as a sum of one for each point.
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(40, 1, generator=generator, dtype=torch.float64).cumsum(0)
    given: dict[str, Any] = {"duration": 8.0}
    if times:
        steps = 1 + torch.rand(2, 39, generator=generator, dtype=torch.float64)
        given = {"times": torch.nn.functional.pad(steps.cumsum(-1), (1, 0))}
    found, slopes = [], []
    for joints in (1, 4):
        asked = points.clone().requires_grad_()
        motion = minimum_jerk(asked.expand(40, joints), samples=256, **given)
        found.append(motion.jerk[..., :1])
        slopes += torch.autograd.grad(motion.velocity[..., 0].square().sum(), asked)
    assert found[0].shape == found[1].shape
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(*slopes, rtol=1e-8, atol=1e-8)
