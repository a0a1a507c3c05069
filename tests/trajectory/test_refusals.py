"""What would go on silently, or end in an error of others, is refused by name."""

import math
from pathlib import Path

import pytest
import torch

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory import (
    Limits,
    Motion,
    State,
    concatenate,
    differentiate,
    from_joint_trajectory,
    minimum_jerk,
    plot,
    read_csv,
    read_urdf_limits,
    resample,
    to_joint_trajectory,
    write_csv,
)

MOTION = minimum_jerk(torch.tensor([[0.0], [1.0]], dtype=torch.float64), 1.0, samples=9)
JOINT = '<joint name="{}" type="revolute"><limit lower="-1" upper="1" velocity="2"/></joint>'


def with_one(value: float, part: str) -> Motion:
    parts = {name: getattr(MOTION, name).clone() for name in ("position", "velocity")}
    parts |= {name: getattr(MOTION, name).clone() for name in ("acceleration", "jerk")}
    parts[part][3, 0] = value
    return Motion(**parts, dt=MOTION.dt)


def even(dt: float, start_time: float | None = None) -> Motion:
    zero = torch.zeros(3, 1, dtype=torch.float64)
    return Motion(zero, zero, zero, zero, dt, start_time)


@pytest.mark.parametrize("part", ["position", "velocity", "acceleration", "jerk"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_motion_that_is_not_finite_is_written_and_judged_by_nobody(part, value, tmp_path):
    motion = with_one(value, part)
    for asked in (
        lambda: motion.violations(Limits(position=9.0)),
        lambda: to_joint_trajectory(motion, ["a"]),
        lambda: write_csv(motion, tmp_path / "motion.csv"),
        lambda: plot(motion),
    ):
        with pytest.raises(ArgumentError, match=f"{part} of the motion is not all finite"):
            asked()
    assert not list(tmp_path.iterdir())


def test_a_motion_that_begins_nowhere_is_not_joined():
    still = even(1.0)
    nowhere = Motion(*(torch.full((3, 1), math.nan, dtype=torch.float64) for _ in range(4)), dt=1.0)
    with pytest.raises(ArgumentError, match="begins elsewhere"):
        concatenate([still, nowhere])


@pytest.mark.parametrize("word", ["nan", "inf", "1e60"])
def test_numbers_that_are_not_finite_are_not_read(word, tmp_path):
    path = tmp_path / "motion.csv"
    write_csv(MOTION, path)
    head, first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([head, first.rsplit(",", 1)[0] + "," + word, *rest]))
    with pytest.raises(ArgumentError, match="jerk of the motion is not all finite"):
        read_csv(path, torch.float32)
    message = to_joint_trajectory(MOTION, ["a"])
    message["points"][2]["velocities"] = [float(word)]
    with pytest.raises(ArgumentError, match="velocity of the motion is not all finite"):
        from_joint_trajectory(message, torch.float32)


def test_stamps_hold_their_times():
    with pytest.raises(ArgumentError, match="Two samples have one stamp"):
        to_joint_trajectory(even(1e-10), ["a"])
    for motion in (even(2e9), even(1.0, start_time=3e9), even(1.0, start_time=-3e9)):
        with pytest.raises(ArgumentError, match="does not hold so many seconds"):
            to_joint_trajectory(motion, ["a"])


def test_no_two_joints_have_one_name():
    both = Motion(*(torch.zeros(3, 2) for _ in range(4)), dt=1.0)
    with pytest.raises(ArgumentError, match="Two joints have one name"):
        to_joint_trajectory(both, ["a", "a"])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (JOINT.format("a") * 2, "Two joints have one name"),
        (JOINT.format("a").replace("revolute", "revolut"), "no known type"),
        (JOINT.format("a").replace(' type="revolute"', ""), "no known type"),
        (JOINT.format("a").replace('name="a" ', ""), "no name"),
        (JOINT.format("a").replace("</joint>", '<limit velocity="1"/></joint>'), "joint 'a'"),
        (JOINT.format("a").replace('"-1"', '"1"'), "joint 'a'"),
        (JOINT.format("a").replace('"2"', '"0"'), "joint 'a'"),
        (JOINT.format("a").replace('"2"', '"nan"'), "joint 'a'"),
    ],
)
def test_a_description_that_says_two_things_is_refused(text, match, tmp_path):
    path = tmp_path / "some.urdf"
    path.write_text(f"<robot>{text}</robot>")
    with pytest.raises(ArgumentError, match=match):
        read_urdf_limits(path)


@pytest.mark.parametrize("read", [read_csv, read_urdf_limits, lambda p: write_csv(MOTION, p)])
def test_files_that_the_system_refuses(read, tmp_path):
    with pytest.raises(ArgumentError, match="file cannot be"):
        read(tmp_path)
    with pytest.raises(ArgumentError, match="file cannot be"):
        read(tmp_path / "none" / "motion.csv")


def test_files_as_others_leave_them_are_read(tmp_path: Path):
    path = tmp_path / "motion.csv"
    write_csv(MOTION, path)
    text = path.read_text()
    path.write_text("\ufeff" + text + "\n\n", encoding="utf-8")
    assert torch.equal(read_csv(path).position, MOTION.position)
    path.write_text(text.splitlines()[0])
    with pytest.raises(ArgumentError, match="0 rows below time, position_0"):
        read_csv(path)


def test_an_index_without_states_is_refused():
    position = torch.zeros(2, 6, 1, dtype=torch.float64)
    with pytest.raises(ArgumentError, match="none is given"):
        differentiate(position, 0.1, start_index=torch.tensor([0, 1]))


def test_a_part_of_a_state_is_a_number():
    with pytest.raises(ArgumentTypeError, match="velocity of a state is not a number"):
        State(velocity=object())


def test_more_samples_than_a_machine_holds_are_refused():
    with pytest.raises(ArgumentError, match="too many samples"):
        resample(MOTION, 1e-12)


def test_what_has_no_numbers_is_neither_drawn_nor_written(tmp_path):
    with pytest.raises(ArgumentTypeError, match="meta"):
        plot(MOTION.to("meta"))
    with pytest.raises(ArgumentTypeError, match="meta"):
        write_csv(MOTION.to("meta"), tmp_path / "motion.csv")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: differentiate(x, -0.1).jerk, "The dt must be positive."),
        (lambda x: resample(differentiate(x, 0.1), 0.05).jerk, "The number of samples depends"),
    ],
)
def test_a_graph_says_what_is_refused(call, said):
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=said):
        torch.compile(call, fullgraph=True, backend="eager")(torch.zeros(9, 3))
