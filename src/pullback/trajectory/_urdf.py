"""Limits of a robot as its URDF gives them."""

import math
from collections.abc import Sequence
from os import PathLike
from typing import Any
from xml.etree import ElementTree

import torch

from pullback.errors import ArgumentError
from pullback.internal._arguments import checked
from pullback.trajectory._exchange import check_names, reaching
from pullback.trajectory._limits import Limits

__all__ = ["ENDLESS", "read_urdf_limits"]

# Radians, and radians a second, more than a joint without limits ever turns: ranges are finite.
ENDLESS = 1e6
_LIMITED = ("revolute", "prismatic", "continuous")
_OTHERS = ("fixed", "floating", "planar")


@checked
def read_urdf_limits(
    path: str | PathLike[str], joint_names: Sequence[str] | None = None
) -> tuple[list[str], Limits]:
    """Read the ranges of position and velocity of a robot's joints.

    A URDF says nothing of acceleration and jerk: add them with `dataclasses.replace`. Fixed joints,
    floating and planar ones, which have no range, and those that mimic another are left out; of a
    continuous one the position may be within a million radians, and where the file gives it no
    limit, which URDF allows of no other, the velocity within a million a second.

    Arguments:
        path: the file.
        joint_names: the joints to read, in the order of a trajectory; all that move, in the order
            of the file, if left out.

    Returns:
        the names and their `Limits`, a float64 tensor ``[dof]`` for each end.

    Raises:
        ArgumentError: the file cannot be read or is no URDF, it has no such joint, one is of no
            known type or has no name of its own, or not just one pair of limits with room between
            them and a velocity.
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
        with reaching("read", path):
            robot = ElementTree.parse(path).getroot()  # noqa: S314  # of the user's own robot
    except ElementTree.ParseError as error:
        raise ArgumentError("The file is not XML.", given=str(error)) from error
    joints = _joints_of(robot)
    names = list(joints) if joint_names is None else list(joint_names)
    check_names(names)
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


def _joints_of(robot: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """The joints with limits of their own, by name."""
    every = robot.findall("joint")
    names = [joint.get("name", "") for joint in every]
    check_names(names)
    for name, joint in zip(names, every, strict=True):
        if not name or joint.get("type") not in _LIMITED + _OTHERS:
            raise ArgumentError(
                "A joint has no name, or is of no known type.",
                given=f"name={name!r}, type={joint.get('type')!r}",
                expected=f"a type among {', '.join(_LIMITED + _OTHERS)}",
            )
    return {
        name: joint
        for name, joint in zip(names, every, strict=True)
        if joint.get("type") in _LIMITED and joint.find("mimic") is None
    }


def _limits_of(name: str, joint: ElementTree.Element) -> tuple[float, float, float]:
    limits, endless = joint.findall("limit"), joint.get("type") == "continuous"
    given: dict[str, Any] = dict(limits[0].attrib) if len(limits) == 1 else {}
    if endless:
        given |= {"lower": -ENDLESS, "upper": ENDLESS} | ({} if limits else {"velocity": ENDLESS})
    try:
        lower, upper = float(given.get("lower", 0)), float(given.get("upper", 0))
        velocity = float(given["velocity"])
    except (KeyError, ValueError):
        lower = upper = velocity = math.nan
    if not (-math.inf < lower < upper < math.inf and 0 < velocity < math.inf):
        raise ArgumentError(
            f"The limits of joint {name!r} are missing, or are no range and no velocity.",
            given=str(given) if len(limits) == 1 else f"{len(limits)} <limit>",
            expected='<limit lower="-1.5" upper="1.5" velocity="2" effort="10"/>',
            mend="Write them into the file, or name the joints to read without this one.",
        )
    return lower, upper, velocity
