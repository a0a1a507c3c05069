"""Motions as others write them: comma-separated values, and ROS's `JointTrajectory`."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.trajectory._motion import Motion
from pullback.trajectory._state import PARTS

__all__ = ["to_joint_trajectory", "write_csv"]

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

    The first row names them: ``time``, ``position_0``, ... and ``jerk_0``, ...; numbers are written
    so that they are read back as they were.

    Arguments:
        motion: ``[horizon, dof]``.
        path: the file, overwritten.

    Raises:
        ArgumentError: a batch of motions.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from pullback.trajectory import minimum_jerk, write_csv
        >>> motion = minimum_jerk(torch.tensor([[0.0], [1.0]]), 4.0, samples=9)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_csv(motion, folder + "/motion.csv")
        ...     lines = Path(folder, "motion.csv").read_text().splitlines()
        >>> len(lines), lines[0], lines[2].split(",")[0]
        (10, 'time,position_0,velocity_0,acceleration_0,jerk_0', '0.5')
    """
    _check_single(motion)
    columns = [_exact_times(motion)[:, None], *(getattr(motion, part) for part in PARTS)]
    rows = torch.cat([column.detach().cpu().double() for column in columns], dim=-1)
    names = [f"{part}_{joint}" for part in PARTS for joint in range(motion.dof)]
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["time", *names])
        writer.writerows([repr(value) for value in row] for row in rows.tolist())


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
    lists = [getattr(motion, part).detach().cpu().double().tolist() for part in PARTS[:3]]
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
