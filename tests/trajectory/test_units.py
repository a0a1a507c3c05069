"""The unit of a joint is nobody's business: radians and microns ask for the same motion."""

import pytest
import torch

from pullback.trajectory import Limits, minimum_duration, minimum_jerk

SCALES = [1e-12, 1e-4, 1e4, 1e6, 1e12]
POINTS = torch.tensor([[0.0], [0.7], [1.0]], dtype=torch.float64)


@pytest.mark.parametrize("scale", SCALES)
def test_the_least_duration_is_that_of_another_unit(scale):
    way = torch.tensor([[0.0], [scale]], dtype=torch.float64)
    _, bounds = minimum_duration(way, Limits(velocity=scale), bounds=True, samples=64)
    _, expected = minimum_duration(way / scale, Limits(velocity=1.0), bounds=True, samples=64)
    torch.testing.assert_close(bounds.high, expected.high, rtol=1e-6, atol=0)
    torch.testing.assert_close(bounds.low, expected.low, rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", ["velocity", "acceleration", "jerk", "position"])
def test_a_limited_motion_is_that_of_another_unit(kind, scale):
    free = getattr(minimum_jerk(POINTS, 1.0, samples=64), kind).abs().max().item()
    limit = 0.95 * free if kind != "position" else (-0.001, 1.001)

    def planned(unit):
        points = (POINTS * unit).requires_grad_()
        wide = tuple(unit * end for end in limit) if kind == "position" else limit * unit
        motion = minimum_jerk(points, 1.0, limits=Limits(**{kind: wide}), samples=64)
        (slope,) = torch.autograd.grad(motion.position[20], points)
        return motion.position / unit, slope

    torch.testing.assert_close(planned(scale), planned(1.0), rtol=1e-7, atol=1e-9)


def test_joints_of_different_units_stand_beside_one_another():
    units = torch.tensor([1e-9, 1.0, 1e9], dtype=torch.float64)
    limits = Limits(velocity=1.8 * units)
    motion = minimum_jerk(POINTS * units, 1.0, limits=limits, samples=64)
    alone = minimum_jerk(POINTS, 1.0, limits=Limits(velocity=1.8), samples=64)
    torch.testing.assert_close(
        motion.position / units, alone.position.expand(-1, 3), rtol=1e-9, atol=1e-11
    )
