"""Where a limit becomes active a derivative is that of a side, to first and to second order."""

import pytest
import torch

from pullback.trajectory import Limits, minimum_jerk

POINTS = torch.tensor([[0.0], [1.0]], dtype=torch.float64)


def measured(limit: torch.Tensor) -> torch.Tensor:
    motion = minimum_jerk(POINTS, 1.0, limits=Limits(velocity=limit), samples=32)
    return motion.jerk[5, 0] / 100 + motion.position[9, 0]


def slope(limit: float) -> tuple[float, float]:
    """The first and the second derivative."""
    v = torch.tensor(limit, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(measured(v), v, create_graph=True)
    return first.item(), torch.autograd.grad(first, v)[0].item()


def secant(limit: float, by: float = 1e-4) -> float:
    low, high = (measured(torch.tensor(limit + side * by, dtype=torch.float64)) for side in (-1, 1))
    return float(high - low) / (2 * by)


# Where rows of the velocity at both sides of the middle leave its limit, to about 1e-4.
KINKS = (1.37177, 1.42205, 1.47625, 1.53480, 1.59815)


@pytest.mark.parametrize("kink", KINKS)
@pytest.mark.parametrize("away", [-1e-3, -3e-4, -1e-4, 1e-5, 3e-4, 1e-3])
def test_a_derivative_near_a_kink_is_that_of_a_side(kink, away):
    sides = [secant(kink + side * 5e-3) for side in (-1, 1)]
    first, second = slope(kink + away)
    off = min(abs(first - side) / side for side in sides)
    assert off < 2e-4, (first, sides)
    assert abs(second) < 1e-4  # the motion is linear in the limit between kinks; it was -45


def test_each_side_has_its_own():
    for kink in KINKS:
        for side in (-1, 1):
            first, _ = slope(kink + side * 2e-3)
            assert first == pytest.approx(secant(kink + side * 5e-3), rel=1e-4)
