"""Motions as others write them: CSV and ROS's `JointTrajectory`."""

import csv
import io
import itertools
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Context, Decimal
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._arguments import checked
from pullback.internal._files import write_whole
from pullback.trajectory._checks import plain, wide_dtype
from pullback.trajectory._limits import check_names, reaching
from pullback.trajectory._motion import Motion, check_dtype, check_finite
from pullback.trajectory._seconds import check_increasing
from pullback.trajectory._state import PARTS

__all__ = [
    "from_joint_trajectory",
    "read_csv",
    "to_joint_trajectory",
    "write_csv",
]

_STAMP = ("sec", "nanosec")
_NANO = 1_000_000_000
_MOST_SECONDS = 2**31  # of a stamp, whose seconds are an int32
# Sums of float64 as they are written, without rounding, and without errors for what is not finite.
_EXACT = Context(prec=700, traps=[])


def _check_writable(motion: Motion, names: Sequence[str]) -> None:
    if motion.position.dim() != 2:
        raise ArgumentError(
            "One trajectory can be written, not a batch of them.",
            given=f"shape {tuple(motion.position.shape)}",
            expected="[horizon, dof]",
            mend="Write the trajectories of a batch one by one.",
        )
    check_finite(motion)
    if motion.position.is_meta:
        raise ArgumentTypeError("A motion on meta has no numbers to write.")
    if len(names) != motion.dof:
        raise ArgumentError(
            "There must be one name for each joint.",
            given=f"{names!r} for {motion.dof} joints",
        )
    check_names(names)


def _header(names: Iterable[str]) -> list[str]:
    """What the columns of a file are called."""
    return ["time", *(f"{part}_{name}" for part, name in itertools.product(PARTS, names))]


def _written_times(motion: Motion) -> list[str]:
    """From which steps are read back as they are, also those after a late start."""
    start = 0.0 if motion.start_time is None else float(motion.start_time)
    steps = motion.dt.detach().cpu().double().expand(max(motion.horizon - 1, 0)).tolist()
    times = (Decimal(repr(seconds)) for seconds in (start, *steps))
    return list(map(str, itertools.accumulate(times, _EXACT.add)))[: motion.horizon]


@checked
def write_csv(
    motion: Motion, path: str | PathLike[str], joint_names: Sequence[str] | None = None
) -> None:
    """Write a motion with a row for each sample: time, and four columns for each joint.

    Numbers are written so that they are read back as they were.

    Arguments:
        motion: ``[horizon, dof]``.
        path: the file, overwritten.
        joint_names: one for each joint, as in ``position_elbow``; numbers from 0 if left out.

    Raises:
        ArgumentError: a batch of motions, numbers that are not finite, another number of names
            than joints, two joints of one name, or a file that cannot be written: what was there is
            as it was.
        ArgumentTypeError: not a motion, no path, or a name that is no text.

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
    names = [str(joint) for joint in range(motion.dof)] if joint_names is None else joint_names
    _check_writable(motion, names)
    columns = [getattr(motion, part).detach().cpu().double() for part in PARTS]
    rows = zip(_written_times(motion), torch.cat(columns, dim=-1).tolist(), strict=True)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(_header(names))
    writer.writerows([time, *map(repr, row)] for time, row in rows)
    with reaching("written", path):
        write_whole(Path(path), text.getvalue())


@checked
def read_csv(path: str | PathLike[str], dtype: torch.dtype = torch.float64) -> Motion:
    """Read a motion that `write_csv` has written, whatever its joints are called.

    Arguments:
        path: the file.
        dtype: of the motion.

    Raises:
        ArgumentError: a file that cannot be read, other columns, rows that do not fit them,
            something that is no finite number, or times that do not increase.
        ArgumentTypeError: no path, or a dtype that is not floating.
    """
    check_dtype(dtype)
    try:
        # Spreadsheets write a mark first; a blank line, as at the end, is no row.
        with reaching("read", path), Path(path).open(newline="", encoding="utf-8-sig") as file:
            head, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ArgumentError(
            "The file is not text with comma-separated values.", given=str(error)
        ) from error
    dof = (len(head) - 1) // len(PARTS)
    names = [column.removeprefix("position_") for column in head[1 : dof + 1]]
    if not rows or not dof or head != _header(names):
        raise ArgumentError(
            "The file does not hold a motion.",
            given=f"{len(rows)} rows below " + (", ".join(head[:6]) or "no header"),
            expected="rows below time, position_0, ..., velocity_0, ..., acceleration_0, ..., "
            "jerk_0, ...",
        )
    table = _table("file", rows, len(head))
    parts = table[:, 1:].split(dof, dim=1)
    pairs = itertools.pairwise([Decimal(row[0]) for row in rows])
    steps = _seconds([_EXACT.subtract(after, before) for before, after in pairs])
    check_increasing("times of the file", table[:, 0], steps)
    return _motion_of(parts, steps, table[0, 0], dtype)


def _seconds(numbers: Iterable[Any]) -> Tensor:
    return torch.tensor(list(map(float, numbers)), dtype=torch.float64, device="cpu")


def _motion_of(parts: Iterable[Tensor], steps: Tensor, start: Tensor, dtype: torch.dtype) -> Motion:
    narrow = (part.to(dtype) for part in parts)
    motion = Motion(*narrow, dt=steps.to(wide_dtype(dtype)), start_time=start)
    check_finite(motion)
    return motion


def _table(what: str, rows: Sequence[Iterable[Any]], width: int) -> Tensor:
    try:
        lists = [[float(value) for value in row] for row in rows]
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(
            f"The {what} holds something that is no number.", given=str(error)
        ) from error
    widths = {len(row) for row in lists}
    if widths != {width}:
        raise ArgumentError(
            f"The {what} has rows of another length than it says.",
            given=f"rows of {', '.join(map(str, sorted(widths)))} numbers",
            expected=f"{width} numbers in each",
        )
    return torch.tensor(lists, dtype=torch.float64, device="cpu")


def _nanoseconds(stamp: Any) -> float:
    given: list[Any] = [stamp.get(k) for k in _STAMP] if isinstance(stamp, Mapping) else [None]
    if not all(isinstance(part, numbers.Real) for part in given):
        raise ArgumentError(
            "A time of the message is missing, or is no stamp.",
            given=repr(stamp),
            expected='{"sec": 1, "nanosec": 500000000}',
        )
    seconds, nanos = map(plain, given)
    return seconds * _NANO + nanos


def _stamp(seconds: float) -> dict[str, int]:
    if not -_MOST_SECONDS <= seconds <= _MOST_SECONDS - 1:
        raise ArgumentError(
            "A stamp does not hold so many seconds.",
            given=f"{seconds:g} s",
            expected="what an int32 holds, 68 years",
            mend="Take the start time from another epoch, or leave it out.",
        )
    whole, rest = divmod(round(seconds * _NANO), _NANO)
    return {"sec": whole, "nanosec": rest}


@checked
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
        ArgumentError: a batch of motions, numbers that are not finite, another number of names
            than joints, two joints of one name, or times that stamps do not hold: of more than 68
            years, or of two samples within a nanosecond.
        ArgumentTypeError: not a motion, or a name that is no text.

    Example:
        >>> import torch
        >>> from pullback.trajectory import minimum_jerk, to_joint_trajectory
        >>> motion = minimum_jerk(torch.tensor([[0.0], [1.0]]), 4.0, samples=9)
        >>> message = to_joint_trajectory(motion, ["elbow"])
        >>> message["joint_names"], message["points"][1]["time_from_start"]
        (['elbow'], {'sec': 0, 'nanosec': 500000000})

    Source: the message definitions of ROS 2, ``common_interfaces``.
    """
    _check_writable(motion, joint_names)
    # Apart from the start, beside which the steps would lose digits, and widened before they are
    # summed: float32 sums of even steps are uneven.
    since = replace(motion, dt=motion.dt.double(), start_time=None).times.detach().cpu()
    stamps = [_stamp(time) for time in since.tolist()]
    if any(one == other for one, other in itertools.pairwise(stamps)):
        raise ArgumentError(
            "Two samples have one stamp, which counts nanoseconds.",
            given=f"steps of {float(since.diff().min()):g} s",
            mend="Resample the motion at longer steps.",
        )
    start = 0.0 if motion.start_time is None else float(motion.start_time)
    lists = [getattr(motion, part).detach().cpu().double().tolist() for part in PARTS[:3]]
    points = [
        {
            "positions": position,
            "velocities": velocity,
            "accelerations": acceleration,
            "effort": [],
            "time_from_start": stamp,
        }
        for stamp, position, velocity, acceleration in zip(stamps, *lists, strict=True)
    ]
    return {
        "header": {"stamp": _stamp(start), "frame_id": frame_id},
        "joint_names": list(joint_names),
        "points": points,
    }


def _length(sequence: Any) -> int:
    """Of a list or an array; of anything else zero."""
    listed = hasattr(sequence, "__getitem__") and not isinstance(sequence, (str, bytes, Mapping))
    try:
        return len(sequence) if listed else 0
    except TypeError:  # an array without dimensions
        return 0


@checked
def from_joint_trajectory(message: Mapping[str, Any], dtype: torch.dtype = torch.float64) -> Motion:
    """A motion from a dictionary in the form of ROS 2's ``trajectory_msgs/JointTrajectory``.

    The jerk of a sample is that by which its acceleration reaches the next one.

    Arguments:
        message: with positions, velocities and accelerations at every point, two points or more.
        dtype: of the motion.

    Raises:
        ArgumentTypeError: the message is not a dictionary, or the dtype is not floating.
        ArgumentError: something is missing or no finite number, points are of different numbers of
            joints, or times do not increase.
    """
    check_dtype(dtype)
    given: Any = message.get("points")
    points = given if _length(given) else ()
    if not all(isinstance(point, Mapping) for point in points):
        raise ArgumentError("A point of the message is not a dictionary.", given=repr(points[:1]))
    names = ("positions", "velocities", "accelerations")
    missing = [name for name in names if not all(_length(point.get(name)) for point in points)]
    if len(points) < 2 or missing:
        raise ArgumentError(
            "The message does not hold a whole motion.",
            given=f"{len(points)} points" + (f", some without {missing[0]}" if missing else ""),
            expected="positions, velocities and accelerations at two points or more",
            mend="Pass the positions to differentiate, with the steps between them.",
        )
    header = message.get("header") or {}
    head = header.get("stamp") if isinstance(header, Mapping) else header
    begin = 0.0 if head is None else _nanoseconds(head) / _NANO
    nanos = [_nanoseconds(point.get("time_from_start")) for point in points]
    since = _seconds(nano / _NANO for nano in nanos)
    steps = _seconds((after - before) / _NANO for before, after in itertools.pairwise(nanos))
    check_increasing("times of the message", since, steps)
    width = _length(message.get("joint_names")) or _length(points[0]["positions"])
    parts = [_table("message", [point[name] for point in points], width) for name in names]
    jerk = parts[2].diff(dim=0) / steps[:, None]
    return _motion_of([*parts, torch.cat([jerk, jerk[-1:]])], steps, since[0] + begin, dtype)
