"""Resampling: polynomials, both ends, steps that do not divide the duration, derivatives."""

import math
from dataclasses import replace

import pytest
import torch

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.trajectory import Motion, minimum_jerk, quintic, resample


def make(count: int = 9, duration: float = 2.0) -> Motion:
    generator = torch.Generator().manual_seed(0)
    through = torch.randn(2, 3, 2, generator=generator, dtype=torch.float64)
    times = torch.linspace(0, duration, count, dtype=torch.float64)
    return quintic(through, [0.0, duration / 2, duration]).sample(times)


@pytest.mark.parametrize("dt", [0.125, 0.25, 0.1, 0.3, 0.7, 2.0, 1.9])
def test_a_piecewise_quintic_on_the_samples_is_reproduced(dt: float) -> None:
    motion = make()
    found = resample(motion, dt)
    generator = torch.Generator().manual_seed(0)
    through = torch.randn(2, 3, 2, generator=generator, dtype=torch.float64)
    exact = quintic(through, [0.0, 1.0, 2.0]).sample(found.times)
    for part in ("position", "velocity", "acceleration", "jerk"):
        torch.testing.assert_close(getattr(found, part), getattr(exact, part), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.position[..., -1, :], motion.position[..., -1, :])
    torch.testing.assert_close(found.times[..., -1].max(), torch.tensor(2.0).double())


def test_steps_are_listed_only_where_the_last_is_shorter() -> None:
    assert resample(make(), 0.1).dt.shape == ()
    shorter = resample(make(), 0.3).dt
    assert shorter.shape[-1] == 7
    torch.testing.assert_close(shorter[..., -1].max(), torch.tensor(0.2).double())


def test_back_and_forth_is_the_same() -> None:
    motion = make()
    back = resample(resample(motion, 0.05), 0.25)
    torch.testing.assert_close(back.position, motion.position)
    torch.testing.assert_close(back.acceleration, motion.acceleration)


def test_float32() -> None:
    motion = make()
    narrow = Motion(*(getattr(motion, p).float() for p in Motion.__dataclass_fields__))
    found = resample(narrow, 0.1)
    assert found.position.dtype == found.dt.dtype == torch.float32
    torch.testing.assert_close(found.position, resample(motion, 0.1).position.float())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("step", [0.35, 0.5])
def test_every_derivative(step: float) -> None:
    motion = make(5)
    parts = [motion.position, motion.velocity, motion.acceleration]
    dt = torch.tensor(step, dtype=torch.float64)
    inputs = [part.detach().clone().requires_grad_() for part in (*parts, dt)]

    def run(p: torch.Tensor, v: torch.Tensor, a: torch.Tensor, dt: torch.Tensor) -> torch.Tensor:
        # The last sample is pinned to the end, so that dt alone moves the inner ones.
        found = resample(Motion(p, v, a, a, torch.tensor(0.5).double()), dt)
        return torch.cat([found.position, found.velocity], -1)[..., 1:-1, :]

    if step == 0.5:  # the number of steps changes here, and inner samples lie on knots
        inputs[-1] = inputs[-1].detach()
    assert torch.autograd.gradcheck(run, inputs, check_forward_ad=True, fast_mode=step == 0.5)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


def test_vmap_over_the_motion() -> None:
    motion = make()
    one = torch.tensor(0.25).double()

    def run(p: torch.Tensor, v: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return resample(Motion(p, v, a, a, one), 0.1).velocity

    parts = (motion.position, motion.velocity, motion.acceleration)
    torch.testing.assert_close(torch.func.vmap(run)(*parts), run(*parts))


def test_bad_input() -> None:
    motion = make()
    for dt in (0.0, -0.1, float("nan")):
        with pytest.raises(ArgumentError, match="step must be positive"):
            resample(motion, dt)
    with pytest.raises(ArgumentError, match="longer than the motion"):
        resample(motion, 2.5)
    with pytest.raises(ArgumentTypeError, match="not one number"):
        resample(motion, torch.ones(2))
    with pytest.raises(ArgumentTypeError, match="Only a motion"):
        resample(motion.position, 0.1)
    still = torch.zeros(2, 3, 1)
    uneven = Motion(still, still, still, still, torch.tensor([[0.1, 0.1], [0.1, 0.2]]))
    with pytest.raises(ArgumentError, match="different durations"):
        resample(uneven, 0.05)
    one = still[:, :1]
    with pytest.raises(ArgumentError, match="too short"):
        resample(Motion(one, one, one, one, torch.tensor(0.1)), 0.05)
    with pytest.raises(UnsupportedError, match="not known here"):
        torch.func.vmap(lambda dt: resample(motion, dt).position)(torch.tensor([0.1, 0.2]))


@pytest.mark.parametrize("duration", [0.5, 2.0, 3.0, 10.0])
@pytest.mark.parametrize("samples", [16, 64, 256])
def test_rounded_steps_make_no_sample_of_their_own(duration: float, samples: int) -> None:
    points = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    planned = minimum_jerk(points, duration, samples=samples)
    narrow = planned.to(torch.float32)
    listed = replace(narrow, dt=narrow.dt.expand(samples - 1))
    for step in (0.002, 0.01, 0.025, 0.03, 0.1):
        whole = round(duration / step)
        divides = abs(whole * step - duration) < 1e-9
        expected = whole + 1 if divides else math.floor(duration / step) + 2
        for motion, dt in (
            (planned, step),
            (narrow, step),
            (listed, step),
            (planned, torch.tensor(step)),
            (narrow, torch.tensor(step)),
        ):
            found = resample(motion, dt)
            assert found.horizon == expected
            assert found.dt.dim() == (0 if divides else 1)
            # The ends stay.
            assert torch.equal(found.position[[0, -1]], motion.position[[0, -1]])


def test_durations_that_differ_by_rounding_end_alike() -> None:
    still = torch.zeros(2, 1001, 1)
    steps = torch.full((2, 1000), 0.001)
    steps[1] = torch.nextafter(steps[1], torch.tensor(1.0))
    for dt in (0.01, 0.3):
        found = resample(Motion(still, still, still, still, steps), dt)
        assert found.horizon == (101 if dt == 0.01 else 5)
        assert bool((found.dt > 1e-4).all())
