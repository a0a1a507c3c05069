"""Motions cut, joined, moved, written and read; angles that turn without end."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory import (
    Motion,
    State,
    concatenate,
    differentiate,
    from_joint_trajectory,
    integrate,
    minimum_jerk,
    quintic,
    read_csv,
    resample,
    to_joint_trajectory,
    unwrap,
    write_csv,
)

POINTS = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
TIMES = [3.0, 3.7, 5.0]
PARTS = ("position", "velocity", "acceleration", "jerk")


def same(one: Motion, other: Motion, **options: float) -> None:
    for part in (*PARTS, "times"):
        torch.testing.assert_close(getattr(one, part), getattr(other, part), **options)


def test_the_absolute_start_is_kept() -> None:
    times = torch.linspace(3.2, 4.8, 9, dtype=torch.float64)
    motion = quintic(POINTS, TIMES).sample(times)
    torch.testing.assert_close(motion.times, times)
    torch.testing.assert_close(resample(motion, 0.1).times[[0, -1]], times[[0, -1]])
    planned = minimum_jerk(POINTS, TIMES, samples=41)
    torch.testing.assert_close(planned.times[[0, -1]], torch.tensor([3.0, 5.0]).double())
    assert minimum_jerk(POINTS, duration=2.0, samples=41).times[0] == 0


def test_a_motion_is_cut_and_joined() -> None:
    for motion in (
        minimum_jerk(POINTS, TIMES, samples=41),
        quintic(POINTS, TIMES).sample([3.0, 3.1, 3.5, 4.0, 4.6, 5.0]),
        minimum_jerk(POINTS.expand(3, 3, 2), torch.tensor([TIMES] * 3).double(), samples=21),
    ):
        assert len(motion) == motion.horizon
        middle = motion.horizon // 2
        first, last = motion[: middle + 1], motion[middle:]
        torch.testing.assert_close(last.times, motion.times[..., middle:])
        same(concatenate([first, last]), motion)
        same(motion[-3:][1:], motion[-2:])
    with pytest.raises(ArgumentTypeError, match="cut by a slice"):
        motion[3]
    with pytest.raises(ArgumentTypeError, match="cut by a slice"):
        motion[::2]
    with pytest.raises(ArgumentError, match="No sample is left"):
        motion[5:5]
    with pytest.raises(ArgumentError, match="begins elsewhere"):
        concatenate([last, first])
    late = replace(last, start_time=last.start_time + 4)
    with pytest.raises(ArgumentError, match="another instant"):
        concatenate([first, late])
    for clock in (None, torch.tensor(0.0)):  # of its own
        same(concatenate([first, replace(last, start_time=clock)]), motion)
    with pytest.raises(ArgumentTypeError, match="no motion"):
        concatenate([])
    with pytest.raises(ArgumentError, match="different kinds"):
        concatenate([first, last.to(dtype=torch.float32)])


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
    with pytest.raises(ArgumentError, match="no such device"):
        motion.to("cuda:99")


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
        from_joint_trajectory(to_joint_trajectory(motion, ["a", "b"]), torch.float32),
    ):
        assert found.position.dtype == torch.float32
        assert found.times[0] == times[0]
        torch.testing.assert_close(
            found.times.diff(), torch.full((20,), step, dtype=torch.float64), rtol=0, atol=1e-6
        )
    whole = minimum_jerk(POINTS, times, samples=21)
    again = from_joint_trajectory(to_joint_trajectory(whole, ["a", "b"]))
    torch.testing.assert_close(again.dt, whole.dt.expand(20), rtol=0, atol=1e-9)


@pytest.mark.parametrize("message", [[], None, "points"])
def test_a_message_is_a_dictionary(message: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="as message"):
        from_joint_trajectory(message)
    with pytest.raises(ArgumentError, match="as joint_names"):
        to_joint_trajectory(minimum_jerk(POINTS, TIMES, samples=21), "ab")


@pytest.mark.parametrize("points", [{"a": 1}, 5, "ab", iter([{}, {}]), torch.tensor(1.0), None])
def test_points_are_a_list(points: Any) -> None:
    with pytest.raises(ArgumentError, match="does not hold a whole motion"):
        from_joint_trajectory({"points": points})


@pytest.mark.parametrize("wrong", ["12", {1.0}, {"a": 1.0}, torch.tensor(1.0), 3])
def test_positions_are_lists_of_numbers(wrong: Any) -> None:
    message = to_joint_trajectory(minimum_jerk(POINTS[:, :1], TIMES, samples=21), ["a"])
    message["points"][3]["positions"] = wrong
    with pytest.raises(ArgumentError, match="does not hold a whole motion"):
        from_joint_trajectory(message)


def test_csv_gives_back_every_bit(tmp_path) -> None:
    motion = quintic(POINTS, TIMES).sample([3.0, 3.1, 3.5, 4.0, 5.0])
    write_csv(motion, tmp_path / "motion.csv")
    again = read_csv(tmp_path / "motion.csv")
    for part in PARTS:
        assert torch.equal(getattr(again, part), getattr(motion, part))
    torch.testing.assert_close(again.times, motion.times, rtol=0, atol=1e-15)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty.csv").write_text("")
    for name in ("other.csv", "empty.csv"):
        with pytest.raises(ArgumentError, match="does not hold a motion"):
            read_csv(tmp_path / name)
    (tmp_path / "text.csv").write_text(
        "time,position_0,velocity_0,acceleration_0,jerk_0\n0,a,0,0,0"
    )
    with pytest.raises(ArgumentError, match="no number"):
        read_csv(tmp_path / "text.csv")
    with pytest.raises(ArgumentError, match="not a batch"):
        write_csv(minimum_jerk(POINTS.expand(2, 3, 2), 1.0, samples=21), tmp_path / "x.csv")


def test_csv_has_the_names_of_joints(tmp_path) -> None:
    motion = minimum_jerk(POINTS, TIMES, samples=9)
    path = tmp_path / "motion.csv"
    for names in (["shoulder", "elbow"], ["position_0", "0, 1"], ["", "time"]):
        write_csv(motion, path, names)
        same(read_csv(path), motion)
    write_csv(motion, path, ["shoulder", "elbow"])
    head, *rows = path.read_text().splitlines()
    assert head.startswith("time,position_shoulder,position_elbow,velocity_shoulder,")
    path.write_text("\n".join([head.replace("jerk_elbow", "jerk_wrist"), *rows]))
    with pytest.raises(ArgumentError, match="does not hold a motion"):
        read_csv(path)
    for wrong, words in ((["elbow"], "one name for each joint"), (["a", "a"], "have one name")):
        with pytest.raises(ArgumentError, match=words):
            write_csv(motion, path, wrong)
    assert "jerk_wrist" in path.read_text()


@pytest.mark.parametrize("start", [None, -3.0, 1.7e9 + 0.123])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("step", [1e-2, 1e-9])
def test_csv_gives_back_every_step(tmp_path, start, dtype, step) -> None:
    # Beside an instant of a clock, a float64 tells steps of a quarter of a microsecond apart.
    motion = minimum_jerk(POINTS, [0.0, 9.7 * step, 20 * step], samples=21).to(dtype)
    since = None if start is None else torch.tensor(start, dtype=torch.float64)
    motion = Motion(*(getattr(motion, part) for part in PARTS), dt=motion.dt, start_time=since)
    write_csv(motion, tmp_path / "motion.csv")
    again = read_csv(tmp_path / "motion.csv", dtype)
    assert torch.equal(again.dt, motion.dt.expand(20))
    assert again.times[0] == (start or 0.0)


def test_even_stamps_are_even_steps() -> None:
    motion = minimum_jerk(POINTS, 1.0, samples=101)
    found = from_joint_trajectory(to_joint_trajectory(motion, ["a", "b"]))
    assert torch.equal(found.dt, torch.full_like(found.dt, 0.01))


def test_a_message_of_ros_gives_back_the_motion() -> None:
    motion = minimum_jerk(POINTS, TIMES, samples=41)
    message = to_joint_trajectory(motion, ["shoulder", "elbow"], frame_id="base")
    assert message["header"] == {"stamp": {"sec": 3, "nanosec": 0}, "frame_id": "base"}
    assert set(message["points"][0]) == {
        "positions", "velocities", "accelerations", "effort", "time_from_start",
    }  # fmt: skip
    same(from_joint_trajectory(message), motion, rtol=1e-6, atol=1e-6)
    with pytest.raises(ArgumentError, match="one name for each joint"):
        to_joint_trajectory(motion, ["elbow"])
    bare = {"points": [{**point, "accelerations": []} for point in message["points"]]}
    with pytest.raises(ArgumentError, match="without accelerations"):
        from_joint_trajectory(bare)
    turned = {**message, "points": message["points"][::-1]}
    with pytest.raises(ArgumentError, match="increase strictly"):
        from_joint_trajectory(turned)


def test_angles_are_unwrapped() -> None:
    turning = torch.linspace(0, 20, 200, dtype=torch.float64)[:, None].repeat(1, 2)
    wrapped = (turning + math.pi).remainder(2 * math.pi) - math.pi
    torch.testing.assert_close(unwrap(wrapped), turning)
    one = unwrap(wrapped, joints=[1])
    torch.testing.assert_close(one[:, 1], turning[:, 1])
    torch.testing.assert_close(one[:, 0], wrapped[:, 0])
    speed = differentiate(unwrap(wrapped), 0.1).velocity
    torch.testing.assert_close(speed, torch.full_like(speed, 200 / 199), rtol=1e-9, atol=1e-9)
    assert torch.autograd.gradcheck(unwrap, wrapped[:40:8].requires_grad_())
    for wrong in ({"period": 0.0}, {"joints": [2]}, {"joints": [-1]}):
        with pytest.raises(ArgumentError):
            unwrap(wrapped, **wrong)
    with pytest.raises(ArgumentTypeError):
        unwrap(torch.zeros(3, 2, dtype=torch.int64))


def test_states_take_lists() -> None:
    samples = torch.zeros(9, 2, dtype=torch.float64)
    motion = differentiate(samples, 0.1, start=State(velocity=[1.0, 2]))
    assert motion.velocity[0].tolist() == [1.0, 2.0]
    pushed = integrate(samples, 0.1, start=State([0.0, 1.0], (2, 3)))
    assert pushed.velocity[-1].tolist() == [2.0, 3.0]
    planned = minimum_jerk(POINTS, 2.0, start=State(velocity=[0.5, -0.5]), samples=21)
    torch.testing.assert_close(planned.velocity[0], torch.tensor([0.5, -0.5]).double())
    for wrong in (["a", "b"], [[1.0], None], [True, False]):
        with pytest.raises(ArgumentTypeError, match="of a state is not a number"):
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
    write_csv(motion, tmp_path / "even.csv")
    for found in (
        read_csv(tmp_path / "even.csv"),
        from_joint_trajectory(to_joint_trajectory(motion, ["a"])),
    ):
        # Nanoseconds are 1e-6 of the step, float32 rounds it by 5e-8 of it.
        torch.testing.assert_close(found.dt, torch.full_like(found.dt, 1e-3), rtol=2e-6, atol=0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scale", [1.0, 3.0, 100.0])
def test_plans_through_one_point_meet_there(scale: float) -> None:
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        points = scale * torch.randn(3, 3, generator=generator, dtype=torch.float64)
        first, second = minimum_jerk(points[:2], 2.0), minimum_jerk(points[1:], 2.0)
        assert concatenate([first, second]).horizon == 511
        apart = minimum_jerk(points[1:] + 1e-9 * scale, 2.0)
        with pytest.raises(ArgumentError, match="begins elsewhere"):
            concatenate([first, apart])


def test_joints_that_do_not_turn_keep_what_is_not_finite() -> None:
    samples = torch.tensor([[0.0, 0.0], [math.nan, 7.0], [math.inf, 1.0], [1.0, 7.0]])
    found = unwrap(samples, joints=[1])
    assert torch.equal(found[:, 0].nan_to_num(nan=9.0), samples[:, 0].nan_to_num(nan=9.0))
    torch.testing.assert_close(found[:, 1], unwrap(samples[:, 1:])[:, 0])
    assert torch.equal(unwrap(samples[:, 1:], joints=[]), samples[:, 1:])
    for joints in (0, iter([1]), "1", torch.tensor([1])):
        with pytest.raises(ArgumentTypeError, match="joints are not a list"):
            unwrap(samples, joints=joints)  # pyrefly: ignore
    with pytest.raises(ArgumentError, match="no such joint"):
        unwrap(samples, joints=[True])


HEAD = "time,position_0,velocity_0,acceleration_0,jerk_0\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("time\n0\n1\n", "does not hold a motion"),
        (HEAD + "0,1,2,3\n1,1,2,3\n", "rows of another length"),
        (HEAD + "0,1,2,3,4\n1,1,2,3,4,5\n", "rows of another length"),
        (HEAD + "1,1,2,3,4\n0,1,2,3,4\n", "increase strictly"),
        (HEAD + "0,1,2,3,4\n0,1,2,3,4\n", "increase strictly"),
        (HEAD + "0,1,2,3,4\nnan,1,2,3,4\n", "increase strictly"),
        (HEAD + "nan,1,2,3,4\n", "increase strictly"),
    ],
)
def test_files_that_hold_no_motion_are_refused(tmp_path, text: str, words: str) -> None:
    (tmp_path / "file.csv").write_text(text)
    with pytest.raises(ArgumentError, match=words):
        read_csv(tmp_path / "file.csv")


def test_a_single_sample_is_written_and_read(tmp_path) -> None:
    single = minimum_jerk(POINTS, TIMES, samples=21)[3:4]
    write_csv(single, tmp_path / "one.csv")
    same(read_csv(tmp_path / "one.csv"), single)
    with pytest.raises(ArgumentTypeError, match="floating dtype"):
        read_csv(tmp_path / "one.csv", torch.int32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"time_from_start": None}, "no stamp"),
        ({"time_from_start": {"secs": 1, "nsecs": 0}}, "no stamp"),
        ({"time_from_start": {"sec": "1", "nanosec": 0}}, "no stamp"),
        ({"time_from_start": {"sec": math.nan, "nanosec": 0}}, "increase strictly"),
        ({"positions": [1.0, 2.0, 3.0]}, "rows of another length"),
        ({"accelerations": [1.0]}, "rows of another length"),
        ({"velocities": ["fast", "slow"]}, "no number"),
        ({"velocities": None}, "without velocities"),
    ],
)
def test_messages_that_hold_no_motion_are_refused(change: dict[str, Any], words: str) -> None:
    message = to_joint_trajectory(minimum_jerk(POINTS, TIMES, samples=21), ["a", "b"])
    points = [*message["points"][:-1], {**message["points"][-1], **change}]
    with pytest.raises(ArgumentError, match=words):
        from_joint_trajectory({**message, "points": points})


def test_what_surrounds_the_points_of_a_message_is_checked() -> None:
    message = to_joint_trajectory(minimum_jerk(POINTS, TIMES, samples=21), ["a", "b"])
    bare = from_joint_trajectory({"points": message["points"]})
    assert bare.times[0] == 0
    for change, words in (
        ({"points": ["here", "there"]}, "not a dictionary"),
        ({"points": None}, "whole motion"),
        ({"header": {"stamp": {}}}, "no stamp"),
        ({"header": 3}, "no stamp"),
        ({"joint_names": ["a"]}, "rows of another length"),
    ):
        with pytest.raises(ArgumentError, match=words):
            from_joint_trajectory({**message, **change})
    with pytest.raises(ArgumentTypeError, match="floating dtype"):
        from_joint_trajectory(message, torch.int32)


def test_unwrap_compiles_with_and_without_joints():
    angles = 5 * torch.randn(2, 9, 2, dtype=torch.float64)
    for chosen in ({}, {"joints": [0]}):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, chosen=chosen: unwrap(x, **chosen), backend="aot_eager")
        torch.testing.assert_close(compiled(angles), unwrap(angles, **chosen))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"time\xe9,position_0\n"])
def test_a_file_that_is_not_text(tmp_path, content):
    path = tmp_path / "motion.csv"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match="not text"):
        read_csv(path)


def test_numbers_of_a_message_that_no_float_holds():
    def message(huge, second):
        points = [
            {
                "positions": [0.0],
                "velocities": [huge],
                "accelerations": [0.0],
                "time_from_start": {"sec": sec, "nanosec": 0},
            }
            for sec in (0, second)
        ]
        return {"joint_names": ["a"], "points": points}

    assert from_joint_trajectory(message(0.0, 1)).horizon == 2
    for wrong in (message(10**400, 1), message(0.0, 10**400)):
        with pytest.raises(ArgumentError):
            from_joint_trajectory(wrong)
