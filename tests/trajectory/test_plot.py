"""The picture of a motion: panels, lines, shades, and what cannot be drawn."""

import sys
from dataclasses import replace

import pytest
import torch

from pullback.errors import ArgumentError, ArgumentTypeError, MissingExtraError
from pullback.trajectory import Limits, Motion, minimum_jerk, plot
from pullback.trajectory._limits import ENDLESS

POINTS = torch.tensor([[0.0, 1.0], [1.0, -1.0], [0.5, 0.0]])


@pytest.fixture
def motion() -> Motion:
    return minimum_jerk(POINTS, 2.0, samples=40)


def test_every_joint_is_drawn_in_every_panel(motion: Motion) -> None:
    figure = plot(motion)
    kinds = ("position", "velocity", "acceleration", "jerk")
    assert [axes.get_ylabel().split()[0] for axes in figure.axes] == list(kinds)
    for axes, kind in zip(figure.axes, kinds, strict=True):
        for joint in range(2):
            drawn = torch.as_tensor(axes.get_lines()[joint].get_ydata())
            torch.testing.assert_close(drawn, getattr(motion, kind)[:, joint].double())
            steps = axes.get_lines()[joint].get_drawstyle()
            assert steps == ("steps-post" if kind == "jerk" else "default")


def test_joints_count_from_zero_as_columns_and_messages_do(motion: Motion) -> None:
    assert [text.get_text() for text in plot(motion).legends[0].get_texts()] == [
        "joint 0",
        "joint 1",
    ]


def test_what_lies_beyond_a_limit_is_shaded(motion: Motion) -> None:
    limits = Limits(velocity=torch.tensor([5.0, 3.0]), jerk=80.0)
    figure = plot(motion, limits)
    assert [len(axes.patches) for axes in figure.axes] == [0, 2, 0, 2]
    low, high = figure.axes[1].patches[0].get_extents().intervaly
    top = figure.axes[1].transData.inverted().transform([[0, low], [0, high]])[:, 1]
    assert top[0] == pytest.approx(5.0)
    dashed = [line for line in figure.axes[1].get_lines() if line.get_linestyle() == "--"]
    assert sorted(line.get_ydata()[0] for line in dashed) == [-3.0, 3.0]
    words = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert words == [[], ["widest limit 5"], [], ["limit 80"]]


def test_both_ends_of_a_range_are_named_where_they_differ(motion: Motion) -> None:
    figure = plot(motion, Limits(position=(-1.5, 2.25), velocity=(-5.0, 5.0)))
    words = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert words[:2] == [["limit 2.25", "limit -1.5"], ["limit 5"]]


@pytest.mark.parametrize("start", [-5.0, 1.7e9])
def test_the_time_axis_is_that_of_the_motion(motion: Motion, start: float) -> None:
    late = replace(motion, start_time=torch.tensor(start, dtype=torch.float64))
    assert plot(late).axes[0].get_xlim() == pytest.approx((start, start + 2), abs=1e-6)


def test_a_joint_that_turns_without_end_leaves_the_others_their_limits(motion: Motion) -> None:
    ends = torch.tensor([ENDLESS, 1.25], dtype=torch.float64)
    axes = plot(motion, Limits(position=(-ends, ends))).axes[0]
    assert axes.get_ylim() == pytest.approx((-1.5, 1.5))
    assert not axes.patches
    assert not axes.texts
    lines = {line.get_ydata()[0] for line in axes.get_lines() if line.get_linestyle() == "--"}
    assert lines == {-1.25, 1.25}
    # Of a range of two million, a ten-thousandth is not near.
    assert not [line for line in axes.get_lines() if line.get_label() == "active"]


def test_narrow_limits_beside_wide_ones_are_met_where_they_are_met(motion: Motion) -> None:
    far = motion.position[:, :1] / 1e4
    small = Motion(*(torch.cat([far, motion.position[:, 1:]], 1) for _ in range(4)), motion.dt)
    axes = plot(small, Limits(position=torch.tensor([1.1e-4, 1.5]))).axes[0]
    assert not [line for line in axes.get_lines() if line.get_label() == "active"]


def test_points_labels_and_a_file(motion: Motion, tmp_path: object) -> None:
    figure = plot(motion, points=POINTS, times=[0.0, 1.0, 2.0], labels=["hip", "knee"], title="A")
    marks = [line for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
    assert [list(line.get_ydata()) for line in marks] == POINTS.T.double().tolist()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["hip", "knee"]
    path = f"{tmp_path}/motion.png"
    figure.savefig(path)
    with open(path, "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"


def test_points_before_and_after_a_motion_are_not_marked_beside_it(motion: Motion) -> None:
    figure = plot(motion[10:30], points=POINTS, times=[0.0, 1.0, 2.0])
    marks = [line for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
    assert [list(line.get_ydata()) for line in marks] == [[1.0], [-1.0]]


def test_gradients_and_short_types_are_drawn() -> None:
    points = POINTS.double().requires_grad_()
    figure = plot(minimum_jerk(points, 2.0, samples=8))
    assert len(figure.axes) == 4


def test_bad_input(motion: Motion, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentTypeError, match="as motion"):
        plot(motion.position)
    with pytest.raises(ArgumentError, match="One trajectory"):
        plot(minimum_jerk(POINTS.expand(2, 3, 2), 2.0, samples=8))
    with pytest.raises(ArgumentError, match="another number of joints"):
        plot(motion, Limits(jerk=torch.ones(3)))
    with pytest.raises(ArgumentError, match="limits for one trajectory"):
        plot(motion, Limits(jerk=torch.ones(3, 2)))
    with pytest.raises(ArgumentError, match="both or neither"):
        plot(motion, points=POINTS)
    with pytest.raises(ArgumentError, match="points do not fit"):
        plot(motion, points=POINTS, times=[0.0, 1.0])
    with pytest.raises(ArgumentError, match="one label for each"):
        plot(motion, labels=["hip"])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"plot needs the package matplotlib"):
        plot(motion)
