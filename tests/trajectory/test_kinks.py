"""Where a limit becomes active there is a first derivative, of a side, and no second one."""

import pytest
import torch

from pullback.errors import UnsupportedError
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


def first_slope(limit: float) -> float:
    v = torch.tensor(limit, dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(measured(v), v)[0].item()


def secant(limit: float, by: float = 1e-4) -> float:
    low, high = (measured(torch.tensor(limit + side * by, dtype=torch.float64)) for side in (-1, 1))
    return float(high - low) / (2 * by)


# Where rows of the velocity at both sides of the middle leave its limit, to about 1e-4.
KINKS = (1.37177, 1.42205, 1.47625, 1.53480, 1.59815)


@pytest.mark.sampled(5)
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


def test_where_a_limit_is_just_met_it_does_not_act_and_a_second_derivative_is_refused():
    # The velocity of least jerk has its peak in the middle: at its control points, to rounding.
    free = minimum_jerk(POINTS, 1.0, samples=32)
    peak = (free.velocity[:-1] + free.dt / 2 * free.acceleration[:-1]).max()
    for nearby in (peak, peak * (1 + 1e-12), peak * (1 - 1e-13)):
        limit = nearby.clone().requires_grad_()
        (first,) = torch.autograd.grad(measured(limit), limit, create_graph=True)
        assert first.item() == 0.0
        with pytest.raises(UnsupportedError, match="a limit is just met"):
            torch.autograd.grad(first, limit)


@pytest.mark.parametrize("kind", ["velocity", "acceleration", "jerk"])
def test_where_a_limit_is_just_met_the_slopes_are_those_without_it(kind):
    points = torch.tensor([[0.0], [0.6], [1.0]], dtype=torch.float64, requires_grad=True)
    free = minimum_jerk(points, 1.0, samples=64)
    parts = {"velocity": free.velocity + free.dt / 2 * free.acceleration}
    peak = parts.get(kind, getattr(free, kind))[:-1].detach().abs().max()
    weights = torch.linspace(-1, 2, 64, dtype=torch.float64)[:, None]
    (wanted,) = torch.autograd.grad((free.position * weights).sum(), points)
    for limit in (peak, peak * (1 + 1e-12), peak * (1 - 1e-12)):
        motion = minimum_jerk(points, 1.0, limits=Limits(**{kind: limit}), samples=64)
        (found,) = torch.autograd.grad((motion.position * weights).sum(), points)
        torch.testing.assert_close(found, wanted)
        assert motion.violations(Limits(**{kind: limit}))[kind].item() <= 0


def test_rows_that_mirror_one_another_come_and_go_together():
    # Where one of them was still active and the other was not, the slope was that of neither side.
    low, high = 1.4761, 1.4763
    sides = [first_slope(low), first_slope(high)]
    assert sides[0] != pytest.approx(sides[1])
    while high - low > 1e-15:
        middle = (low + high) / 2
        low, high = (
            (middle, high) if first_slope(middle) == pytest.approx(sides[0]) else (low, middle)
        )
    for near in range(-30, 30):
        first = first_slope(low + near * 2**-52)
        assert min(abs(first - side) for side in sides) < 1e-6 * abs(sides[0])
