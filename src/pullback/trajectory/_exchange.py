"""Motions as others write them: comma-separated values, and ROS's `JointTrajectory`."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory._motion import Motion, time_dtype

__all__ = ["from_joint_trajectory", "read_csv", "to_joint_trajectory", "write_csv"]

_PARTS = ("position", "velocity", "acceleration", "jerk")
_NANO = 1_000_000_000


def _check_single(motion: Motion) -> None:
    if motion.position.dim() != 2:
        raise ArgumentError(
            "One trajectory can be written, not a batch of them.",
            given=f"shape {tuple(motion.position.shape)}",
            expected="[horizon, dof]",
            mend="Write the trajectories of a batch one by one.",
        )


def _exact_times(motion: Motion) -> Tensor:
    """Widened before they are summed: float32 sums of even steps are uneven."""
    return replace(motion, dt=motion.dt.to(torch.float64)).times


def write_csv(motion: Motion, path: str | Path) -> None:
    """Write a motion with a row for each sample: time, and four columns for each joint.

    Numbers are written so that they are read back as they were.

    Arguments:
        motion: ``[horizon, dof]``.
        path: the file, overwritten.

    Raises:
        ArgumentError: a batch of motions.

    Example:
        >>> import tempfile, torch
        >>> from pullback.trajectory import minimum_jerk, read_csv, write_csv
        >>> motion = minimum_jerk(torch.tensor([[0.0], [1.0]]), 1.0, samples=9)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_csv(motion, folder + "/motion.csv")
        ...     again = read_csv(folder + "/motion.csv", dtype=torch.float32)
        >>> torch.equal(again.position, motion.position)
        True
    """
    _check_single(motion)
    columns = [_exact_times(motion)[:, None], *(getattr(motion, part) for part in _PARTS)]
    rows = torch.cat([column.detach().cpu().double() for column in columns], dim=-1)
    names = [f"{part}_{joint}" for part in _PARTS for joint in range(motion.dof)]
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["time", *names])
        writer.writerows([repr(value) for value in row] for row in rows.tolist())


def read_csv(path: str | Path, dtype: torch.dtype = torch.float64) -> Motion:
    """Read a motion that `write_csv` has written.

    Arguments:
        path: the file.
        dtype: of the motion.

    Raises:
        ArgumentError: other columns, or something that is no number.
    """
    with Path(path).open(newline="") as file:
        head, *rows = list(csv.reader(file)) or [[]]
    dof = (len(head) - 1) // len(_PARTS)
    names = [f"{part}_{joint}" for part in _PARTS for joint in range(dof)]
    if not rows or head != ["time", *names]:
        raise ArgumentError(
            "The file does not hold a motion.",
            given=", ".join(head[:6]) or "an empty file",
            expected="columns time, position_0, ..., velocity_0, ..., acceleration_0, ..., jerk_0",
        )
    try:
        table = torch.tensor(
            [[float(value) for value in row] for row in rows], dtype=torch.float64, device="cpu"
        )
    except ValueError as error:
        raise ArgumentError(
            "The file holds something that is no number, or rows of different lengths.",
            given=str(error),
        ) from error
    parts = [part.to(dtype) for part in table[:, 1:].split(dof, dim=1)]
    times = table[:, 0]
    return Motion(*parts, dt=times.diff().to(time_dtype(dtype)), start_time=times[0])


def _stamp(seconds: float) -> dict[str, int]:
    whole, rest = divmod(round(seconds * _NANO), _NANO)
    return {"sec": whole, "nanosec": rest}


def to_joint_trajectory(
    motion: Motion, joint_names: Sequence[str], *, frame_id: str = ""
) -> dict[str, Any]:
    """A motion as a dictionary in the form of ROS 2's ``trajectory_msgs/JointTrajectory``.

    The message has no place for jerk. ``time_from_start`` counts from sample 0; the start time of
    the motion is the stamp of the header.

    Arguments:
        motion: ``[horizon, dof]``.
        joint_names: one for each joint.
        frame_id: of the header.

    Raises:
        ArgumentError: a batch of motions, or another number of names than joints.

    Example:
        >>> import torch
        >>> from pullback.trajectory import minimum_jerk, to_joint_trajectory
        >>> motion = minimum_jerk(torch.tensor([[0.0], [1.0]]), 4.0, samples=9)
        >>> message = to_joint_trajectory(motion, ["elbow"])
        >>> message["joint_names"], message["points"][1]["time_from_start"]
        (['elbow'], {'sec': 0, 'nanosec': 500000000})

    Source: the message definitions of ROS 2, ``common_interfaces``.
    """
    _check_single(motion)
    if isinstance(joint_names, str) or len(joint_names) != motion.dof:
        raise ArgumentError(
            "There must be one name for each joint.",
            given=f"{joint_names!r} for {motion.dof} joints",
        )
    # Apart from the start, beside which the steps would lose digits.
    since = _exact_times(replace(motion, start_time=None)).detach().cpu()
    start = 0.0 if motion.start_time is None else float(motion.start_time)
    lists = [getattr(motion, part).detach().cpu().double().tolist() for part in _PARTS[:3]]
    points = [
        {
            "positions": position,
            "velocities": velocity,
            "accelerations": acceleration,
            "effort": [],
            "time_from_start": _stamp(time),
        }
        for time, position, velocity, acceleration in zip(since.tolist(), *lists, strict=True)
    ]
    return {
        "header": {"stamp": _stamp(start), "frame_id": frame_id},
        "joint_names": list(joint_names),
        "points": points,
    }


def from_joint_trajectory(message: Mapping[str, Any], dtype: torch.dtype = torch.float64) -> Motion:
    """A motion from a dictionary in the form of ROS 2's ``trajectory_msgs/JointTrajectory``.

    The jerk of a sample is that by which its acceleration reaches the next one.

    Arguments:
        message: with positions, velocities and accelerations at every point, two points or more.
        dtype: of the motion.

    Raises:
        ArgumentTypeError: the message is not a dictionary.
        ArgumentError: something is missing, or times do not increase.
    """
    if not isinstance(message, Mapping):
        raise ArgumentTypeError(
            "The message is not a dictionary.",
            given=type(message).__name__,
            expected='{"joint_names": [...], "points": [...]}',
        )
    points = message.get("points", ())
    names = ("positions", "velocities", "accelerations")
    missing = [name for name in names if not all(len(point.get(name, ())) for point in points)]
    if len(points) < 2 or missing:
        raise ArgumentError(
            "The message does not hold a whole motion.",
            given=f"{len(points)} points" + (f", some without {missing[0]}" if missing else ""),
            expected="positions, velocities and accelerations at two points or more",
            mend="Pass the positions to differentiate, with the steps between them.",
        )
    stamps = [point["time_from_start"] for point in points]
    head = message.get("header", {}).get("stamp", {"sec": 0, "nanosec": 0})
    nanos = [stamp["sec"] * _NANO + stamp["nanosec"] for stamp in stamps]
    begin = (head["sec"] * _NANO + head["nanosec"]) / _NANO
    since = torch.tensor([nano / _NANO for nano in nanos], dtype=torch.float64, device="cpu")
    if not bool((since.diff() > 0).all()):
        raise ArgumentError(
            "The times of the message do not increase.", given=str(since[:8].tolist())
        )
    parts = [
        torch.tensor([list(point[name]) for point in points], dtype=torch.float64, device="cpu")
        for name in names
    ]
    jerk = parts[2].diff(dim=0) / since.diff()[:, None]
    parts.append(torch.cat([jerk, jerk[-1:]]))
    return Motion(
        *(part.to(dtype) for part in parts),
        dt=since.diff().to(time_dtype(dtype)),
        start_time=since[0] + begin,
    )
