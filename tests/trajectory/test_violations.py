"""How far motions go beyond limits between samples, and the limits of a robot's description."""

import pytest
import torch
from tests.trajectory.conftest import assert_within

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory import Limits, Motion, minimum_jerk, plot, read_urdf_limits

F64 = {"dtype": torch.float64}
LIMITS = Limits(velocity=1.2, acceleration=4.0, jerk=30.0, position=(-0.4, 0.7))


def drawn(seed: int) -> Motion:
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(3, 6, 2, generator=generator, **F64) for _ in range(4)]
    dt = torch.rand(3, 5, generator=generator, **F64) + 0.5
    return Motion(*(2**k * part for k, part in enumerate(parts)), dt=dt)


def test_between_samples_it_is_what_a_fine_grid_sees() -> None:
    motion = drawn(0)
    found = motion.violations(LIMITS)
    t = motion.dt[..., None, None] * torch.linspace(0, 1, 4001, **F64)
    p, v, a, j = (
        getattr(motion, kind)[:, :-1, :, None]
        for kind in ("position", "velocity", "acceleration", "jerk")
    )
    fine = {
        "position": p + t * (v + t / 2 * (a + t / 3 * j)),
        "velocity": v + t * (a + t / 2 * j),
        "acceleration": a + t * j,
        "jerk": j + 0 * t,
    }
    ends = {"velocity": 1.2, "acceleration": 4.0, "jerk": 30.0}
    for kind, values in fine.items():
        lower, upper = (-0.4, 0.7) if kind == "position" else (-ends[kind], ends[kind])
        last = getattr(motion, kind)[:, -1:, :, None].expand(-1, 1, -1, 4001)
        every = torch.cat([values, last], 1)
        wanted = torch.maximum(every - upper, lower - every).amax((1, 3))
        assert bool((found[kind] >= wanted - 1e-9).all())
        torch.testing.assert_close(found[kind], wanted, atol=1e-4, rtol=1e-6)


def test_a_motion_within_limits_violates_none_and_one_without_does() -> None:
    points = torch.tensor([[0.0, 0.0], [1.0, 0.5]], **F64)
    limits = Limits(velocity=1.5, acceleration=9.0, position=(-0.01, 1.01))
    kept = minimum_jerk(points, 1.0, limits=limits, samples=48).violations(limits)
    assert all(bool((excess <= 1e-12).all()) for excess in kept.values())
    free = minimum_jerk(points, 1.0, samples=48).violations(limits)
    assert free["velocity"][0] == pytest.approx(0.375, abs=1e-3)
    assert free["velocity"][1] < 0
    with pytest.raises(ArgumentTypeError):
        minimum_jerk(points, 1.0, samples=8).violations(1.5)  # type: ignore[arg-type]


def test_the_check_of_every_motion_of_these_tests_sees_one_that_is_beyond() -> None:
    points = torch.tensor([[0.0], [1.0]], **F64)
    motion = minimum_jerk(points, 1.0, samples=32)
    assert_within(motion, Limits(velocity=1.9))
    with pytest.raises(AssertionError, match="velocity"):
        assert_within(motion, Limits(velocity=1.87))


def test_straight_and_still_pieces_have_no_root() -> None:
    zero, one = torch.zeros(2, 1, **F64), torch.ones(2, 1, **F64)
    assert Motion(zero, zero, zero, zero, 1.0).violations(LIMITS)["position"].item() == -0.4
    line = Motion(torch.tensor([[0.0], [1.0]], **F64), one, zero, zero, 1.0)
    assert line.violations(LIMITS)["position"].item() == pytest.approx(0.3)


URDF = """<robot name="two"><link name="base"/>
<joint name="slide" type="prismatic"><limit upper="0.4" velocity="0.5" effort="1"/></joint>
<joint name="turn" type="continuous"><limit velocity="3" effort="1"/></joint>
<joint name="flange" type="fixed"/>
<joint name="finger" type="revolute"><mimic joint="turn"/></joint></robot>"""


def test_limits_are_those_of_the_description(tmp_path) -> None:
    path = tmp_path / "two.urdf"
    path.write_text(URDF)
    names, limits = read_urdf_limits(path)
    assert names == ["slide", "turn"]
    assert limits.velocity.tolist() == [0.5, 3.0]
    assert limits.position[1].tolist() == [0.4, 1e6]
    assert read_urdf_limits(path, ["turn", "slide"])[1].velocity.tolist() == [3.0, 0.5]
    path.write_text(URDF.replace('<limit velocity="3" effort="1"/>', ""))  # as of most wheels
    _, free = read_urdf_limits(path)
    assert free.velocity.tolist() == [0.5, 1e6]
    points = torch.tensor([[0.1, 0.0], [0.3, 9.0]], **F64)
    assert not plot(minimum_jerk(points, 4.0, samples=32), free).axes[1].get_ylim()[1] > 9
    motion = minimum_jerk(points, 4.0, limits=limits, samples=32)
    assert all(bool((excess <= 1e-12).all()) for excess in motion.violations(limits).values())


@pytest.mark.parametrize(
    ("text", "names", "match"),
    [
        ("no xml", None, "not XML"),
        ("<robot/>", None, "no such joint"),
        (URDF, ["flange"], "no such joint"),
        (URDF.replace('velocity="3"', ""), None, "'turn' are missing"),
        (URDF.replace('"0.4"', '"far"'), None, "'slide' are missing"),
    ],
)
def test_what_is_no_description_is_refused(tmp_path, text, names, match) -> None:
    path = tmp_path / "some.urdf"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=match):
        read_urdf_limits(path, names)


def test_a_picture_shows_where_a_limit_is_active() -> None:
    limits = Limits(velocity=1.5)
    motion = minimum_jerk(torch.tensor([[0.0], [1.0]], **F64), 1.0, limits=limits, samples=48)
    axes = plot(motion, limits).axes[1]
    (line,) = [one for one in axes.get_lines() if one.get_label() == "active"]
    at = torch.as_tensor(line.get_ydata()).isfinite()
    low, high = axes.get_ylim()
    near = (motion.velocity[:, 0] - 1.5).abs() < 1e-4 * (high - low)
    assert bool((at == near).all())
    assert 2 <= int(at.sum()) < 40


def test_a_limit_that_is_met_at_one_sample_or_in_one_step_alone_is_seen() -> None:
    zero, jerk = torch.zeros(5, 1, **F64), torch.tensor([[2.0], [0.0], [0.0], [2.0], [0.0]], **F64)
    velocity = torch.tensor([[0.0], [0.0], [1.0], [0.0], [0.0]], **F64)
    figure = plot(Motion(zero, velocity, zero, jerk, 1.0), Limits(velocity=1.0, jerk=2.0))
    lines = [
        [one for one in figure.axes[panel].get_lines() if one.get_label() == "active"]
        for panel in (1, 3)
    ]
    assert lines[0][0].get_markevery() == [False, False, True, False, False]
    # A jerk is held from its sample to the next, also where it is met in one step alone.
    assert lines[1][0].get_drawstyle() == "steps-post"
    assert lines[0][0].get_drawstyle() == "default"
