"""Numbers and arrays of NumPy's are numbers, as Python's are."""

import numpy as np
import pytest
import torch

from pullback.errors import ArgumentTypeError
from pullback.trajectory import (
    Limits,
    Motion,
    Preconditioner,
    State,
    differentiate,
    integrate,
    minimum_jerk,
    minimum_time,
    resample,
    unwrap,
)

POINTS = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
SAMPLES = torch.randn(9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
FAST = State(velocity=np.array([1, 2]), acceleration=np.float32(0))


def equal(given: Motion, expected: Motion) -> None:
    for name in ("position", "velocity", "acceleration", "jerk", "dt"):
        assert torch.equal(getattr(given, name), getattr(expected, name)), name


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, np.int64, np.int8, np.array])
def test_seconds(kind) -> None:
    two = kind(2)
    equal(differentiate(SAMPLES, two), differentiate(SAMPLES, 2.0))
    start = State(position=two, velocity=two)
    expected = integrate(SAMPLES, 2.0, start=State(position=2.0, velocity=2.0))
    equal(integrate(SAMPLES, two, start=start), expected)
    motion = minimum_jerk(POINTS, duration=two, samples=9)
    equal(motion, minimum_jerk(POINTS, duration=2.0, samples=9))
    equal(resample(motion, two), resample(motion, 2.0))
    parts = (motion.position, motion.velocity, motion.acceleration, motion.jerk)
    timed = Motion(*parts, dt=two, start_time=two).times
    assert torch.equal(timed, Motion(*parts, dt=2.0, start_time=2.0).times)
    limited = minimum_time(POINTS, Limits(velocity=(-two, two), jerk=two), samples=32)
    equal(limited, minimum_time(POINTS, Limits(velocity=2.0, jerk=2.0), samples=32))
    assert torch.equal(unwrap(SAMPLES, period=two), unwrap(SAMPLES, period=2.0))
    weighted = Preconditioner(np.int64(9), two)
    assert torch.equal(weighted.invert(SAMPLES), Preconditioner(9, 2.0).invert(SAMPLES))


def test_arrays() -> None:
    times = np.array([0, 1, 3])
    motion = minimum_jerk(POINTS, times, start=FAST, samples=np.int64(9))
    plain = State(velocity=[1.0, 2.0], acceleration=0.0)
    equal(motion, minimum_jerk(POINTS, [0.0, 1.0, 3.0], start=plain, samples=9))
    most = np.array([3.0, 5.0])
    expected = minimum_jerk(POINTS, duration=4.0, limits=Limits(velocity=[3.0, 5.0]), samples=32)
    for limits in (Limits(velocity=most), Limits(velocity=(-most, most))):
        equal(minimum_jerk(POINTS, duration=4.0, limits=limits, samples=32), expected)
    turned = unwrap(5 * SAMPLES, joints=np.arange(1))
    assert torch.equal(turned, unwrap(5 * SAMPLES, joints=[0]))


def test_what_is_no_number_is_refused() -> None:
    for wrong in (np.array([True]), np.bool_(True), np.array(["a"]), np.array([1j])):
        with pytest.raises(ArgumentTypeError):
            State(velocity=wrong)
        with pytest.raises(ArgumentTypeError):
            Limits(velocity=wrong)
    with pytest.raises(ArgumentTypeError, match="not a number"):
        minimum_jerk(POINTS, duration=1.0, start=State(velocity=object()))  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError):
        differentiate(SAMPLES, np.bool_(True))  # type: ignore[arg-type]
