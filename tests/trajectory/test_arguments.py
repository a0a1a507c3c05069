"""What is no argument of this room's names is refused by an error of ours."""

import pytest
import torch
from tests.arguments import Call, public_calls, wrong_answers

from pullback import trajectory
from pullback.errors import ArgumentTypeError
from pullback.trajectory import Limits, Preconditioner, Spline, State, rest

POINTS = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
SAMPLES = POINTS.repeat(3, 1)
MOTION = trajectory.minimum_jerk(POINTS, 1.0, samples=8)
TIMES, FAST = [0.0, 0.4, 1.0], Limits(velocity=1.0, acceleration=9.0)
ENDS = {"start": rest, "goal": rest}
PARTS = dict.fromkeys(("position", "velocity", "acceleration", "jerk"), SAMPLES)
CURVE = Spline(torch.arange(2.0), torch.ones(1, 4, 2))
METRIC = Preconditioner(3, 0.1)
MESSAGE = trajectory.to_joint_trajectory(MOTION, ["hip", "knee"])
URDF = """<robot name="one"><joint name="hip" type="revolute">
<limit lower="-1" upper="2" velocity="3"/></joint></robot>"""


@pytest.fixture(autouse=True, scope="module")
def files(tmp_path_factory):
    """Where a motion and a robot are written."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "robot.urdf").write_text(URDF)
    trajectory.write_csv(MOTION, folder / "motion.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield


def call(name, also=None, free="", choices="", **given):
    """A call of a public name, or of a method of something."""
    function = name if callable(name) else getattr(trajectory, name)
    return lambda: Call(function, given, also or {}, free, choices)


CALLS = {
    "Limits": call(
        "Limits", velocity=1.0, position=(-1.0, 1.0), between=True,
        also={"velocity": "object class coroutine empty",
              "position": "object class coroutine empty whole"},
    ),
    "Motion": call("Motion", **PARTS, dt=0.1, start_time=0.0, also={"start_time": "negative"}),
    "Motion.to": call(MOTION.to, device="cpu", dtype=torch.float32),
    "Motion.violations": call(MOTION.violations, limits=FAST),
    "Preconditioner": call(
        "Preconditioner", horizon=3, dt=0.1, order=3, start="fixed", goal="free",
        weights=torch.ones(3), dtype=torch.float32, device="cpu",
        also={"device": "none"}, choices="order start goal device",
    ),
    "Preconditioner.step": call(METRIC.step, parameters=[POINTS], also={"parameters": "empty"}),
    "Spline": call("Spline", knots=torch.arange(2.0), coefficients=torch.ones(1, 4, 2),
                   free="knots coefficients"),
    "Spline.sample": call(CURVE.sample, times=[0.0, 1.0], also={"times": "empty"}),
    "State": call("State", position=[0.0, 1.0], free="position"),
    "backend_used": call("backend_used", position=POINTS, backend="auto", choices="backend"),
    "bspline": call("bspline", control_points=SAMPLES, duration=1.0, degree=3, **ENDS,
                    also={"start": "none", "goal": "none"}, choices="degree"),
    "concatenate": call("concatenate", motions=[MOTION]),
    "differentiate": call(
        "differentiate", position=SAMPLES, dt=0.1, **ENDS, scheme="central", reference=0.5,
        backend="auto", also={"reference": "negative"}, choices="scheme backend",
    ),
    "from_joint_trajectory": call("from_joint_trajectory", message=MESSAGE, dtype=torch.float32),
    "integrate": call("integrate", control=SAMPLES, dt=0.1, start=State(0.0, 0.0),
                      order="acceleration", method="exact", backend="auto",
                      choices="order method backend"),
    "minimum_acceleration": call("minimum_acceleration", points=POINTS, times=TIMES, **ENDS,
                                 samples=16, limits=Limits(velocity=90.0),
                                 also={"times": "whole"}),
    "minimum_duration": call("minimum_duration", points=POINTS[:2], limits=FAST, **ENDS,
                             samples=16, bounds=True),
    "minimum_jerk": call("minimum_jerk", points=POINTS, duration=1.0, **ENDS, samples=16,
                         limits=Limits(velocity=90.0)),
    "minimum_time": call("minimum_time", points=POINTS, limits=FAST, times=TIMES, **ENDS,
                         samples=16, order=3, also={"times": "whole"}, choices="order"),
    "plot": call("plot", motion=MOTION, limits=FAST, points=POINTS, times=TIMES,
                 labels=["a", "b"], title="text"),
    "quintic": call("quintic", points=POINTS, times=TIMES, **ENDS,
                    also={"start": "none", "goal": "none"}),
    "read_csv": call("read_csv", path="motion.csv", dtype=torch.float32, free="path"),
    "read_urdf_limits": call("read_urdf_limits", path="robot.urdf", joint_names=["hip"],
                             free="path"),
    "resample": call("resample", motion=MOTION, dt=0.1, also={"dt": "whole"}),
    "threads_used": call("threads_used", position=POINTS, backend="auto", choices="backend"),
    "to_joint_trajectory": call("to_joint_trajectory", motion=MOTION, joint_names=["a", "b"],
                                frame_id="text"),
    "unwrap": call("unwrap", position=SAMPLES, period=6.0, joints=[0], also={"joints": "empty"}),
    "write_csv": call("write_csv", motion=MOTION, path="other.csv"),
}  # fmt: skip
for method in ("invert", "multiply", "positions", "variables"):
    parameter = {"invert": "gradient", "multiply": "x", "positions": "variables"}
    given = {parameter.get(method, "positions"): POINTS}
    CALLS[f"Preconditioner.{method}"] = call(getattr(METRIC, method), **given)


def test_every_public_name_is_here():
    assert set(CALLS) == public_calls(trajectory) - {"Backend", "DurationBounds"}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_refused(name):
    right = CALLS[name]()
    right.function(**right.given)  # it is right otherwise
    assert list(wrong_answers(CALLS[name])) == []


@pytest.mark.parametrize("path", [0, True, None, b"motion.csv", object()])
def test_what_is_no_path(path):
    for read in (trajectory.read_csv, trajectory.read_urdf_limits):
        with pytest.raises(ArgumentTypeError, match="as path"):
            read(path)
