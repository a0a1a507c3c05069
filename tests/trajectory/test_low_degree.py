"""Limits on motions that a parabola, or almost one, meets by itself: their energy is rounding."""

import pytest
import torch

from pullback.trajectory import Limits, State, free, minimum_jerk

OFF = [0.0, 1e-11, 1e-7, 1e-5]


def drawn(seed, off):
    """Points of a parabola, so far off, their times, and a part between zero and one."""
    source = torch.Generator().manual_seed(seed)
    draws = torch.rand(8, generator=source, dtype=torch.float64)
    times = torch.tensor([0.0, 0.5, 2.0, 4.0], dtype=torch.float64)
    times[1:] += draws[:3]
    points = (1 + draws[3]) * times**2 + (0.2 + draws[4]) * times
    points += off * torch.randn(4, generator=source, dtype=torch.float64)
    return points.unsqueeze(-1) * 10 ** (6 * draws[5] - 3), times, 0.4 + 0.5 * float(draws[6])


def limit_between(points, times, part, options):
    """A limit that some motion through the points keeps, and the one of least jerk does not."""
    fastest = minimum_jerk(points, times, **options).velocity.abs().max()
    least = (points.diff(dim=0).squeeze(-1) / times.diff()).abs().max()
    return float(least + part * (fastest - least))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("samples", [48, 301])
@pytest.mark.parametrize("off", OFF)
@pytest.mark.parametrize("seed", range(4))
def test_a_limit_that_a_parabola_does_not_keep_is_kept(seed, off, samples):
    points, times, part = drawn(seed, off)
    options = {"start": free, "goal": free, "samples": samples}
    limit = limit_between(points, times, part, options)
    motion = minimum_jerk(points, times, limits=Limits(velocity=limit), **options)
    fastest = motion.velocity.abs().max()
    assert fastest <= limit * (1 + 1e-6)
    assert fastest >= limit * (1 - 4 / samples)  # the limit holds half a step beyond the ends


@pytest.mark.parametrize("off", OFF)
def test_its_gradient(off):
    points, times, part = drawn(7, off)
    options = {"start": free, "goal": free, "samples": 48}
    limits = Limits(velocity=limit_between(points, times, part, options))

    def position(points):
        return minimum_jerk(points, times, limits=limits, **options).position.sum()

    leaf = points.clone().requires_grad_()
    (slope,) = torch.autograd.grad(position(leaf), leaf)
    signs = torch.tensor([[0.3], [-0.7], [0.5], [0.2]], dtype=torch.float64)
    step = 1e-5 * points[-1] * signs
    difference = (position(points + step) - position(points - step)) / 2
    torch.testing.assert_close((slope * step).sum(), difference, rtol=1e-4, atol=0)


def test_a_bend_on_a_long_line_is_as_it_is_alone():
    # What it costs is small beside how far the motion goes: the unit of the cost is its own.
    bend = 1e-7 * torch.tensor([[0.0], [0.3], [-0.2], [0.1], [0.4]], dtype=torch.float64)
    times = torch.linspace(0.0, 1.0, 5, dtype=torch.float64)
    fastest = minimum_jerk(bend, times, samples=256).velocity.abs().max()
    found = []
    for slope in (0.0, 1.0):
        end, most = State(velocity=slope, acceleration=0.0), 0.95 * float(fastest)
        points = (bend + slope * times[:, None]).requires_grad_()
        limits = Limits(velocity=(slope - most, slope + most))
        motion = minimum_jerk(points, times, start=end, goal=end, limits=limits, samples=256)
        slopes = torch.autograd.grad(motion.jerk.square().sum(), points, create_graph=True)[0]
        (second,) = torch.autograd.grad(slopes[2].sum(), points)
        found.append((motion.jerk.detach(), slopes.detach(), second))
    for alone, along in zip(*found, strict=True):
        assert (along - alone).abs().max() <= 1e-4 * alone.abs().max()
