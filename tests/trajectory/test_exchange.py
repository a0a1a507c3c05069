"""Motions moved and written for others; starts, steps and states that are kept."""

import csv
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory import (
    Motion,
    State,
    differentiate,
    integrate,
    minimum_jerk,
    quintic,
    resample,
    to_joint_trajectory,
    write_csv,
)

POINTS = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
TIMES = [3.0, 3.7, 5.0]
PARTS = ("position", "velocity", "acceleration", "jerk")


def same(one: Motion, other: Motion, **options: float) -> None:
    for part in (*PARTS, "times"):
        torch.testing.assert_close(getattr(one, part), getattr(other, part), **options)


def written(motion: Motion, path: Path) -> Tensor:
    """The numbers of a file, whose first row must name them."""
    write_csv(motion, path)
    with path.open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["time", *(f"{part}_{joint}" for part in PARTS for joint in range(motion.dof))]
    return torch.tensor([[float(value) for value in row] for row in rows], dtype=torch.float64)


def seconds(stamp: dict[str, int]) -> float:
    return stamp["sec"] + stamp["nanosec"] / 1e9


def since_start(motion: Motion) -> Tensor:
    points = to_joint_trajectory(motion, ["a"] * motion.dof)["points"]
    times = [seconds(point["time_from_start"]) for point in points]
    return torch.tensor(times, dtype=torch.float64)


def test_the_absolute_start_is_kept() -> None:
    times = torch.linspace(3.2, 4.8, 9, dtype=torch.float64)
    motion = quintic(POINTS, TIMES).sample(times)
    torch.testing.assert_close(motion.times, times)
    torch.testing.assert_close(resample(motion, 0.1).times[[0, -1]], times[[0, -1]])
    planned = minimum_jerk(POINTS, TIMES, samples=41)
    torch.testing.assert_close(planned.times[[0, -1]], torch.tensor([3.0, 5.0]).double())
    assert minimum_jerk(POINTS, duration=2.0, samples=41).times[0] == 0


def test_a_motion_goes_elsewhere() -> None:
    motion = minimum_jerk(POINTS, TIMES, samples=21)
    narrow = motion.to(dtype=torch.float32)
    assert {getattr(narrow, name).dtype for name in (*PARTS, "dt")} == {torch.float32}
    same(motion.to(torch.float32), narrow)
    half = motion.to(torch.bfloat16)
    assert half.jerk.dtype == torch.bfloat16
    torch.testing.assert_close(half.times, motion.times, rtol=1e-6, atol=0)
    assert motion.to("meta").jerk.is_meta
    same(motion.to("cpu"), motion)
    with pytest.raises(ArgumentTypeError, match="floating dtype"):
        motion.to(dtype=torch.int32)
    with pytest.raises(ArgumentTypeError, match="floating dtype"):
        motion.to(torch.int32)
    with pytest.raises(ArgumentError, match="Two dtypes"):
        motion.to(torch.float32, torch.float64)  # pyrefly: ignore
    with pytest.raises(ArgumentError, match="no such device"):
        motion.to("nowhere")


CLOCK = 1.7e9  # seconds since 1970: float32 tells apart what is two minutes apart


def test_an_instant_of_a_clock_survives_in_float32() -> None:
    times = torch.tensor(TIMES, dtype=torch.float64) + CLOCK
    motion = minimum_jerk(POINTS.float(), times, samples=21)
    step = (TIMES[-1] - TIMES[0]) / 20
    for found in (
        motion,
        minimum_jerk(POINTS, times, samples=21).to(torch.float32),
        quintic(POINTS.float(), times).sample(times[0] + torch.arange(21).double() * step),
        resample(motion, step),
    ):
        assert found.position.dtype == torch.float32
        assert found.times[0] == times[0]
        torch.testing.assert_close(
            found.times.diff(), torch.full((20,), step, dtype=torch.float64), rtol=0, atol=1e-6
        )
    whole = minimum_jerk(POINTS, times, samples=21)
    assert to_joint_trajectory(whole, ["a", "b"])["header"]["stamp"]["sec"] == int(CLOCK) + 3
    torch.testing.assert_close(since_start(whole).diff(), whole.dt.expand(20), rtol=0, atol=1e-9)


def test_csv_holds_every_bit(tmp_path: Path) -> None:
    motion = quintic(POINTS, TIMES).sample([3.0, 3.1, 3.5, 4.0, 5.0])
    table = written(motion, tmp_path / "motion.csv")
    assert torch.equal(table[:, 1:], torch.cat([getattr(motion, part) for part in PARTS], dim=-1))
    torch.testing.assert_close(table[:, 0], motion.times, rtol=0, atol=1e-15)
    with pytest.raises(ArgumentError, match="not a batch"):
        write_csv(minimum_jerk(POINTS.expand(2, 3, 2), 1.0, samples=21), tmp_path / "x.csv")


def test_a_message_of_ros_holds_the_motion() -> None:
    motion = minimum_jerk(POINTS, TIMES, samples=41)
    message = to_joint_trajectory(motion, ["shoulder", "elbow"], frame_id="base")
    assert message["header"] == {"stamp": {"sec": 3, "nanosec": 0}, "frame_id": "base"}
    assert message["joint_names"] == ["shoulder", "elbow"]
    assert set(message["points"][0]) == {
        "positions", "velocities", "accelerations", "effort", "time_from_start",
    }  # fmt: skip
    for name, part in zip(("positions", "velocities", "accelerations"), PARTS, strict=False):
        told = torch.tensor([point[name] for point in message["points"]], dtype=torch.float64)
        assert torch.equal(told, getattr(motion, part))
    torch.testing.assert_close(3 + since_start(motion), motion.times, rtol=0, atol=1e-9)
    for names in (["elbow"], "ab"):
        with pytest.raises(ArgumentError, match="one name for each joint"):
            to_joint_trajectory(motion, names)


def test_states_take_lists() -> None:
    samples = torch.zeros(9, 2, dtype=torch.float64)
    motion = differentiate(samples, 0.1, start=State(velocity=[1.0, 2]))
    assert motion.velocity[0].tolist() == [1.0, 2.0]
    pushed = integrate(samples, 0.1, start=State([0.0, 1.0], (2, 3)))
    assert pushed.velocity[-1].tolist() == [2.0, 3.0]
    planned = minimum_jerk(POINTS, 2.0, start=State(velocity=[0.5, -0.5]), samples=21)
    torch.testing.assert_close(planned.velocity[0], torch.tensor([0.5, -0.5]).double())
    for wrong in (["a", "b"], [[1.0], None], [True, False]):
        with pytest.raises(ArgumentTypeError, match="of a state cannot be"):
            State(velocity=wrong)
    with pytest.raises(ArgumentError, match="no tensor of numbers"):
        differentiate(samples, 0.1, start=State(velocity=[[1.0], [1.0, 2.0]]))
    with pytest.raises(ArgumentError, match="does not fit"):
        differentiate(samples, 0.1, start=State(velocity=[1.0, 2.0, 3.0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_times_of_halves_stay_apart(dtype: torch.dtype) -> None:
    motion = minimum_jerk(POINTS.to(dtype), TIMES, samples=1000)
    assert motion.position.dtype == dtype
    assert len(set(motion.times.tolist())) == 1000
    assert motion.times[-1].item() == pytest.approx(5.0, abs=1e-4)


def test_resampling_does_not_compare_every_sample_with_every_knot() -> None:
    # Comparing them took 4.9 GB here; the samples themselves are a few hundred kilobytes.
    motion = integrate(torch.zeros(16_000, 1), 0.01, start=State(0.0, 1.0))
    with torch.profiler.profile(profile_memory=True) as profile:
        fine = resample(motion, 0.005)
    most = max(event.cpu_memory_usage for event in profile.key_averages())
    assert fine.horizon == 32_001
    assert most < 100e6


@pytest.mark.parametrize("listed", [False, True])
def test_an_even_step_of_float32_stays_even(tmp_path, listed: bool) -> None:
    still = torch.zeros(20_000, 1)
    step = torch.tensor(1e-3)
    motion = Motion(still, still, still, still, step.expand(19_999) if listed else step)
    for times in (written(motion, tmp_path / "even.csv")[:, 0], since_start(motion)):
        # Nanoseconds are 1e-6 of the step, float32 rounds it by 5e-8 of it.
        steps = times.diff()
        torch.testing.assert_close(steps, torch.full_like(steps, 1e-3), rtol=2e-6, atol=0)
