"""Limits of motions whose ends are free: nothing beyond the motion is limited."""

import numpy as np
import pytest
import scipy.optimize
import torch

from pullback.errors import ArgumentError
from pullback.trajectory import (
    Limits,
    Motion,
    State,
    free,
    minimum_acceleration,
    minimum_duration,
    minimum_jerk,
    minimum_time,
)

TIMES = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
PARABOLA = TIMES[:, None] ** 2
LINE = torch.tensor([[0.0], [1.0]], dtype=torch.float64)


def extremes(motion: Motion) -> tuple[float, float]:
    """Of the velocity at every instant, which is a parabola in each step."""
    v, a, j = (part[..., :-1, :] for part in (motion.velocity, motion.acceleration, motion.jerk))
    s = torch.linspace(0, 1, 33, dtype=torch.float64)[:, None, None] * motion.dt
    values = v + a * s + j * s**2 / 2
    return float(values.min()), float(values.max())


def controls(motion: Motion) -> float:
    """The largest velocity of control points: those of each step, and the ends themselves."""
    inner = motion.velocity[:-1] + motion.acceleration[:-1] * motion.dt / 2
    return float(torch.cat([motion.velocity[[0, -1]], inner]).abs().max())


@pytest.mark.parametrize("samples", [5, 16, 101])
def test_a_parabola_keeps_the_limits_that_it_keeps(samples: int) -> None:
    limits = Limits(velocity=(-0.01, 2.01), acceleration=(1.9, 2.1))
    found = minimum_jerk(PARABOLA, TIMES, start=free, goal=free, samples=samples, limits=limits)
    unlimited = minimum_jerk(PARABOLA, TIMES, start=free, goal=free, samples=samples)
    torch.testing.assert_close(found.position, unlimited.position)
    narrow = Limits(velocity=(-0.01, 1.9), acceleration=(1.99, 2.1))
    with pytest.raises(ArgumentError, match="velocity"):
        minimum_jerk(PARABOLA, TIMES, start=free, goal=free, samples=samples, limits=narrow)


@pytest.mark.parametrize("samples", [16, 256])
def test_a_free_end_is_as_fast_as_its_limit(samples: int) -> None:
    limits = Limits(velocity=2.0)
    motion = minimum_time(PARABOLA, limits, times=TIMES, start=free, goal=free, samples=samples)
    assert float(motion.velocity.max()) == pytest.approx(2.0, rel=1e-6)
    assert float(motion.times[-1]) == pytest.approx(1.0, rel=1e-6)
    # The derivative at an end of which only the acceleration is known.
    still = minimum_time(LINE, limits, goal=State(acceleration=0.0), samples=samples)
    low, high = extremes(still)
    assert high == pytest.approx(2.0, rel=1e-4)
    assert low >= -2.0


def test_the_formula_holds_where_the_goal_is_free() -> None:
    # Of least jerk from rest to a free end: q = (10 s^3 - 5 s^4 + s^5) / 6, fastest at the end.
    motion = minimum_time(LINE, Limits(velocity=1.0), goal=free)
    assert float(motion.times[-1]) == pytest.approx(2.5, rel=1e-4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("minimum", [minimum_jerk, minimum_acceleration])
@pytest.mark.parametrize("end", [free, State(acceleration=1.0)], ids=["free", "pushed"])
@pytest.mark.parametrize("order", [1, -1])
def test_limits_hold_at_every_instant(minimum, end: State, order: int) -> None:
    generator = torch.Generator().manual_seed(3)
    ends = {"start": end, "goal": State(velocity=0.3)}
    if order < 0:
        ends = {"start": ends["goal"], "goal": ends["start"]}
    for _ in range(8):
        points = torch.rand(4, 1, generator=generator, dtype=torch.float64).cumsum(0)
        least = minimum(points, 2.0, samples=24, **ends)
        speed = float(points.diff(dim=0).max()) * 1.5
        for width in (1.1, 1.3):
            limits = Limits(velocity=(-width * speed, width * speed))
            try:
                found = minimum(points, 2.0, samples=24, limits=limits, **ends)
            except ArgumentError:
                assert controls(least) > width * speed  # what keeps its limits is not refused
                continue
            reach = max(abs(value) for value in extremes(found))
            assert reach <= width * speed
            if controls(least) < width * speed * (1 - 1e-6):
                torch.testing.assert_close(found.position, least.position)


def test_derivatives_follow_the_limit_at_a_free_end() -> None:
    def end(limit: torch.Tensor) -> torch.Tensor:
        limits = Limits(velocity=limit)
        return minimum_jerk(LINE, 1.0, goal=free, limits=limits, samples=20).velocity[-1, 0]

    limit = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    assert end(limit).item() == pytest.approx(2.0, rel=1e-6)
    assert torch.autograd.gradcheck(end, limit, rtol=1e-4)
    time = minimum_duration(LINE, Limits(velocity=1.0), goal=free).times[-1]
    assert float(time) < 2.5


@pytest.mark.parametrize("order", [1, -1])
def test_the_least_speed_is_that_of_a_linear_program(order: int) -> None:
    samples, step = 24, 1 / 23
    points = torch.tensor([[0.0], [0.8], [0.3], [1.0]], dtype=torch.float64)
    eye = np.eye(samples + 2)
    places = np.array([0, 23 / 3, 46 / 3, 23])
    away = np.abs(places[:, None] - np.arange(-1, samples + 1))
    met = (np.clip(2 - away, 0, None) ** 3 - 4 * np.clip(1 - away, 0, None) ** 3) / 6
    ends = (eye[2:] - eye[:-2])[[0, -1]] / 2
    rows = np.concatenate([ends, (eye[1:] - eye[:-1])[1:-1]]) / step
    still = (eye[2] - eye[0])[None] / 2  # the start's velocity is zero, its acceleration free
    solved = scipy.optimize.linprog(
        np.append(np.zeros(samples + 2), 1),
        np.pad(np.concatenate([rows, -rows]), ((0, 0), (0, 1)), constant_values=-1),
        np.zeros(2 * len(rows)),
        np.pad(np.concatenate([met, still]), ((0, 0), (0, 1))),
        np.append(points.numpy(), 0),
        bounds=(None, None),
    )
    least = float(solved.fun)
    held = {"start": State(velocity=0.0), "goal": free}
    if order < 0:
        points, held = points.flip(0), {"start": free, "goal": State(velocity=0.0)}

    def plan(by: float) -> Motion:
        limits = Limits(velocity=least * by)
        return minimum_jerk(points, 1.0, limits=limits, samples=samples, **held)

    reach = max(abs(value) for value in extremes(plan(1.00001)))
    assert reach <= least * 1.00001
    with pytest.raises(ArgumentError, match="velocity"):
        plan(0.9999)
