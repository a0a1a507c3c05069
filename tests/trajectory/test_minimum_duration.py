"""`minimum_duration`: within its limits, faster than the stretch, and hardly slower than can be."""

import pytest
import torch

from pullback.errors import ArgumentError, UnsupportedError
from pullback.trajectory import (
    Limits,
    State,
    free,
    hold,
    minimum_duration,
    minimum_jerk,
    minimum_time,
)

THREE = torch.tensor([[0.0], [0.1], [5.0]], dtype=torch.float64)
FIVE = torch.tensor([[0.0, 1.0], [0.1, 1.0], [2.0, -1.0], [2.1, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("points", "limits"),
    [
        (THREE, Limits(velocity=1.0)),
        (THREE, Limits(velocity=1.0, acceleration=4.0, jerk=40.0)),
        (FIVE, Limits(velocity=(-2.0, 1.0), acceleration=5.0)),
        (FIVE, Limits(velocity=1.0, position=(-1.1, 2.2))),
    ],
    ids=["velocity", "three", "asymmetric", "position"],
)
def test_it_hurries_within_limits(points, limits):
    motion = minimum_duration(points, limits, samples=48)
    stretched = minimum_time(points, Limits(velocity=limits.velocity), samples=48)
    assert motion.times[-1] < stretched.times[-1]
    for kind in limits.given:
        value, limit = getattr(motion, kind), getattr(limits, kind)
        lower, upper = limit if isinstance(limit, tuple) else (-limit, limit)
        assert (value <= upper).all()
        assert (value >= lower).all()
    for end, index in ((0, 0), (-1, -1)):
        torch.testing.assert_close(motion.position[end], points[index])
    for point in points:
        # Met between samples, so one sample away at most.
        reach = motion.dt * motion.velocity.abs().amax() + 1e-6
        assert ((motion.position - point).abs().amax(-1)).min() <= reach


def test_the_figures_of_the_page():
    limits = Limits(velocity=1.0)
    assert 15.2 < minimum_time(THREE, limits).times[-1] < 15.4
    fast = minimum_duration(THREE, limits).times[-1]
    assert 5.0 < fast < 5.6  # no motion is faster than 5 s


def test_a_batch_is_each_by_itself():
    points = torch.stack([THREE, 2 * THREE.flip(0)])
    together = minimum_duration(points, Limits(velocity=1.0), samples=48)
    for index in range(2):
        alone = minimum_duration(points[index], Limits(velocity=1.0), samples=48)
        torch.testing.assert_close(together.times[index, -1], alone.times[-1], rtol=5e-3, atol=0)


def test_it_is_differentiable_at_its_times():
    points = THREE.clone().requires_grad_()
    motion = minimum_duration(points, Limits(velocity=1.0), samples=48)
    motion.position.square().sum().backward()
    assert points.grad.abs().sum() > 0


def test_what_is_refused():
    with pytest.raises(ArgumentError, match="alike"):
        minimum_duration(torch.tensor([[0.0], [0.0], [1.0]]), Limits(velocity=1.0))
    for limits in (Limits(), Limits(position=10.0)):
        with pytest.raises(ArgumentError, match="no least duration"):
            minimum_duration(THREE, limits)
    with pytest.raises(UnsupportedError, match=r"torch\.func"):
        torch.vmap(lambda p: minimum_duration(p, Limits(velocity=1.0)).position)(THREE[None])


def test_the_stretch_keeps_positions_or_says_so():
    wide = Limits(velocity=1.0, position=(-0.5, 5.5))
    plain = minimum_time(THREE, Limits(velocity=1.0), samples=64, times=[0.0, 0.1, 1.0])
    kept = minimum_time(THREE, wide, samples=64, times=[0.0, 0.1, 1.0])
    torch.testing.assert_close(plain.times, kept.times)
    with pytest.raises(ArgumentError, match="no duration changes where"):
        minimum_time(THREE, wide, samples=64)  # swings to -1 first
    with pytest.raises(ArgumentError, match="no least duration"):
        minimum_time(THREE, Limits(position=9.0))
    # Here the unlimited motion leaves the range at any duration, and the limited one does not.
    narrow = Limits(velocity=1.0, position=(-0.01, 5.01))
    assert minimum_duration(THREE, narrow, samples=64).position.min() >= -0.01
    assert minimum_jerk(THREE, 12.0, limits=wide, samples=64).position.min() >= -0.5


def test_segments_share_the_hurry():
    # By the descent that stood here before, 7 joints through 6 points took 16.6 s.
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(6, 7, generator=generator, dtype=torch.float64)
    motion = minimum_duration(points, Limits(velocity=1.0, acceleration=4.0, jerk=40.0))
    assert motion.times[-1] < 16.0


@pytest.mark.parametrize(
    "end", [State(velocity=1.0), State(acceleration=1.0)], ids=["velocity", "acceleration"]
)
def test_ends_that_move_are_refused(end):
    for ends in ({"start": end}, {"goal": end}):
        with pytest.raises(ArgumentError, match="is not zero"):
            minimum_duration(THREE, Limits(velocity=2.0), **ends)


@pytest.mark.parametrize("end", [free, hold], ids=["free", "hold"])
def test_every_end_at_rest_or_free(end):
    motion = minimum_duration(THREE, Limits(velocity=1.0), start=end, goal=end, samples=48)
    assert 4.9 < motion.times[-1] < 7.0
