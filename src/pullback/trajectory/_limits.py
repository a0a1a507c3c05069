"""`Limits`: where a joint may be, and how fast, how hard and how suddenly it may move.

And those of a robot, as its URDF gives them.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any
from xml.etree import ElementTree

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._arguments import checked
from pullback.internal.kernels._kernel import broadcast_shapes
from pullback.trajectory._checks import (
    as_tensor,
    check_choice,
    check_fit,
    is_number,
    plain,
    somewhere,
)
from pullback.trajectory._state import register_dataclass

__all__ = [
    "ENDLESS",
    "KINDS",
    "Limit",
    "Limits",
    "check_limits",
    "check_names",
    "range_of",
    "reaching",
    "read_urdf_limits",
]

KINDS = ("velocity", "acceleration", "jerk", "position")

Limit = Tensor | float | list[float] | tuple[Any, Any]


@dataclass(frozen=True, eq=False)
class Limits:
    """Ranges of position, velocity, acceleration and jerk; what is left out is unlimited.

    One magnitude ``m`` means from ``-m`` to ``m``; a tuple of two is the lower and the upper end.
    A `Limits` is a pytree whose leaves are its tensors.

    Arguments:
        velocity: a positive magnitude, or ``(lower, upper)``, per second.
        acceleration: the same, per second squared.
        jerk: the same, per second cubed.
        position: ``(lower, upper)``, each a number, ``[dof]``, ``[..., dof]`` or a list with one
            number for each joint, in the unit of a joint; or one magnitude.
        between: whether the range of the position is kept between samples too, by the control
            points of each step. Ends may lie on a limit; points between them then need room of a
            millionth of the range, but in `minimum_time`. The other ranges always hold at every
            instant.

    Raises:
        ArgumentError: a magnitude that is not positive, a range that is empty, or a ``between``
            that is neither True nor False.
        ArgumentTypeError: a limit that is no number, tensor, list or pair of them.

    Example:
        >>> Limits(velocity=2.0, jerk=50.0).given
        ('velocity', 'jerk')
        >>> Limits(position=(-1.0, 2.5), velocity=(-1.0, 2.0)).given
        ('velocity', 'position')
    """

    velocity: Limit | None = None
    acceleration: Limit | None = None
    jerk: Limit | None = None
    position: Limit | None = None
    between: bool = False

    def __post_init__(self) -> None:
        check_choice("value of between", self.between, (False, True))
        for kind in self.given:
            value = getattr(self, kind)
            value = _pair(kind, value) if isinstance(value, tuple) else _number(kind, value)
            object.__setattr__(self, kind, value)
            _check_range(kind, value)

    @property
    def given(self) -> tuple[str, ...]:
        """The kinds that are limited."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None)


def _number(kind: str, value: Any) -> Any:
    """One end: a float, or a tensor; anything that may stand for one in a pytree is let through."""
    value = plain(value)
    if is_number(value):
        return float(value)
    none = (list, Tensor, str, bytes, bool, complex, dict, set, type(None))
    if isinstance(value, none):
        return as_tensor(f"limit on {kind}", value, torch.float64, torch.device("cpu"))
    return value


def _pair(kind: str, value: tuple[Any, ...]) -> tuple[Any, Any]:
    if len(value) != 2:
        raise ArgumentError(
            f"The range of {kind} is not a pair.",
            given=repr(value),
            expected="(lower, upper); a list has one magnitude for each joint",
        )
    lower, upper = (_number(kind, end) for end in value)
    if isinstance(lower, float) and isinstance(upper, Tensor):
        lower = torch.full_like(upper, lower)
    if isinstance(upper, float) and isinstance(lower, Tensor):
        upper = torch.full_like(lower, upper)
    return lower, upper


def _check_range(kind: str, value: Any) -> None:
    """Refuse a magnitude that is not positive, a range that is empty, and ends that do not fit."""
    ends = value if isinstance(value, tuple) else (0.0, value)
    # Inside a pytree a leaf may be anything (an in_dim, a marker): only tensors are read.
    if not all(isinstance(end, (float, Tensor)) for end in ends):
        return
    lower, upper = (
        end if isinstance(end, Tensor) else torch.tensor(end, dtype=torch.float64, device="cpu")
        for end in ends
    )
    try:
        broadcast_shapes(lower.shape, upper.shape)
        fits = lower.device == upper.device or not isinstance(value, tuple)
    except RuntimeError:
        fits = False
    if not fits:
        raise ArgumentError(
            f"The two ends of the range of {kind} do not fit each other.",
            given=f"{tuple(lower.shape)} on {lower.device}, {tuple(upper.shape)} on {upper.device}",
            expected="shapes that broadcast, on one device",
        )
    # Below vmap the two may be batched unlike each other, so they are compared above it.
    if not somewhere(~((lower < upper) & torch.isfinite(lower) & torch.isfinite(upper))):
        return
    if isinstance(value, tuple):
        raise ArgumentError(
            f"The range of {kind} is empty or not finite.",
            given=repr(value),
            expected="lower < upper, both finite",
        )
    raise ArgumentError(
        f"The limit on {kind} must be positive.",
        given=repr(value),
        expected="a finite magnitude > 0, a pair (lower, upper), or None for no limit",
    )


def check_limits(limits: Any, like: Tensor) -> None:
    """Refuse what is not a `Limits` that fits points ``[..., count, dof]``."""
    if not isinstance(limits, Limits):
        raise ArgumentTypeError(
            "The limits are not a Limits.",
            given=type(limits).__name__,
            expected="pullback.trajectory.Limits(velocity=..., acceleration=..., jerk=...)",
        )
    for kind in limits.given:
        value = getattr(limits, kind)
        for end in value if isinstance(value, tuple) else (value,):
            tensor = as_tensor(f"limit on {kind}", end, torch.float64, like.device)
            if tensor.dim():
                check_fit(f"limit on {kind}", tensor, like)
        _check_range(kind, value)  # again: what a transform makes from a pytree is not constructed


def range_of(limits: Limits, kind: str, like: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of a range, which must be given, as float64 ``[..., dof]`` or ``[..., 1]``."""
    value = getattr(limits, kind)
    lower, upper = value if isinstance(value, tuple) else (None, value)
    upper = _end(upper, like)
    return (-upper if lower is None else _end(lower, like)), upper


def _end(value: Any, like: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        value = torch.full((), float(value), dtype=torch.float64, device=like.device)
    value = value.to(torch.float64)
    return value if value.dim() else value.unsqueeze(-1)


register_dataclass(Limits, (*KINDS, "between"))


# Radians, and radians a second, more than a joint without limits ever turns: ranges are finite.
ENDLESS = 1e6
_LIMITED = ("revolute", "prismatic", "continuous")
_OTHERS = ("fixed", "floating", "planar")


@contextmanager
def reaching(what: str, path: str | PathLike[str]) -> Iterator[None]:
    """Refuse a file that the system does not let us have."""
    try:
        yield
    except OSError as error:
        given = f"{path}: {error.strerror}"
        raise ArgumentError(f"The file cannot be {what}.", given=given) from error


def check_names(names: Sequence[str]) -> None:
    """Refuse a name that two joints have."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ArgumentError("Two joints have one name.", given=", ".join(map(repr, twice)))


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
