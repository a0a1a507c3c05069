"""The limits of a robot from its description, a URDF file."""

from collections.abc import Sequence
from os import PathLike
from xml.etree import ElementTree

import torch

from pullback.errors import ArgumentError
from pullback.internal._arguments import checked
from pullback.trajectory._limits import Limits

__all__ = ["read_urdf_limits"]

# Radians, more than a joint that turns without end ever turns: ranges are finite.
_ENDLESS = 1e6


@checked
def read_urdf_limits(
    path: str | PathLike[str], joint_names: Sequence[str] | None = None
) -> tuple[list[str], Limits]:
    """Read the ranges of position and velocity of a robot's joints.

    A URDF says nothing of acceleration and jerk: add them with `dataclasses.replace`. Fixed joints
    and those that mimic another are left out; of a continuous one the position may be within a
    million radians.

    Arguments:
        path: the file.
        joint_names: the joints to read, in the order of a trajectory; all that move, in the order
            of the file, if left out.

    Returns:
        the names and their `Limits`, a float64 tensor ``[dof]`` for each end.

    Raises:
        ArgumentError: the file is no URDF, it has no such joint, or a joint has no limits.
        ArgumentTypeError: no path, or a name that is no text.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> text = '''<robot name="one"><joint name="elbow" type="revolute">
        ...   <limit lower="-1.5" upper="2.5" effort="9" velocity="3"/></joint></robot>'''
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "one.urdf"
        ...     _ = path.write_text(text)
        ...     names, limits = read_urdf_limits(path)
        >>> names, limits.velocity.tolist(), [end.tolist() for end in limits.position]
        (['elbow'], [3.0], [[-1.5], [2.5]])

    Source: the URDF specification, https://wiki.ros.org/urdf/XML/joint.
    """
    try:
        robot = ElementTree.parse(path).getroot()  # noqa: S314  # a file of the user's own robot
    except ElementTree.ParseError as error:
        raise ArgumentError("The file is not XML.", given=str(error)) from error
    joints = {
        joint.get("name", ""): joint
        for joint in robot.findall("joint")
        if joint.get("type") in ("revolute", "prismatic", "continuous")
        and joint.find("mimic") is None
    }
    names = list(joints) if joint_names is None else list(joint_names)
    unknown = [name for name in names if name not in joints]
    if unknown or not names:
        raise ArgumentError(
            "The robot has no such joint that moves.",
            given=", ".join(unknown) or f"a <{robot.tag}> without joints",
            expected="joints among: " + (", ".join(joints) or "none"),
        )
    rows = [_limits_of(name, joints[name]) for name in names]
    lower, upper, velocity = torch.tensor(rows, dtype=torch.float64, device="cpu").unbind(-1)
    return names, Limits(position=(lower, upper), velocity=velocity)


def _limits_of(name: str, joint: ElementTree.Element) -> tuple[float, float, float]:
    limit, endless = joint.find("limit"), joint.get("type") == "continuous"
    given = {} if limit is None else limit.attrib
    ends = (-_ENDLESS, _ENDLESS) if endless else (given.get("lower", 0), given.get("upper", 0))
    try:
        return float(ends[0]), float(ends[1]), float(given["velocity"])
    except (KeyError, ValueError) as error:
        raise ArgumentError(
            f"The limits of joint {name!r} are missing, or no numbers.",
            given=str(dict(given)),
            expected='<limit lower="-1.5" upper="1.5" velocity="2" effort="10"/>',
        ) from error
