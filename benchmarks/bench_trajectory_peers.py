"""Motions beside ruckig (state to state) and toppra (a given path), in one run.

    python -m benchmarks.bench_trajectory_peers [--page | --check]

The table is written into the page at the end; `--page` writes it from the saved one, `--check` says
whether it stands there. Without the peers, which `python -m benchmarks.wild.setup` installs,
nothing is measured and the saved table stays.
"""

import argparse
import csv
import importlib.util
import logging
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.markers import check_or_write
from pullback.trajectory import Limits, minimum_duration, minimum_time

RESULTS = Path(__file__).parent / "results" / "trajectory_peers.csv"
PAGE = Path(__file__).parents[1] / "docs" / "trajectory-optimise.md"
OURS = "minimum_duration", "minimum_time"
PEERS = "ruckig", "toppra"
VELOCITY, ACCELERATION, JERK = 1.0, 4.0, 40.0
WAYS = {
    "one joint through 0, 0.1, 5": np.array([[0.0], [0.1], [5.0]]),
    "two joints through four points": np.array([[0.0, 1.0], [0.1, 1.0], [2.0, -1.0], [2.1, 0.0]]),
}


def timed(function, repeats):
    """The median of the processor's seconds that a call takes, after a first one, and its result.

    On one thread; other work on the machine adds nothing to them.
    """
    result, seconds = function(), []
    for _ in range(repeats):
        begin = time.process_time()
        function()
        seconds.append(time.process_time() - begin)
    return result, statistics.median(seconds)


def ruckig_motion():
    import ruckig

    task = ruckig.InputParameter(7)
    task.current_position = [0.0] * 7
    task.target_position = [1.0 + 0.1 * joint for joint in range(7)]
    task.max_velocity, task.max_acceleration = [VELOCITY] * 7, [ACCELERATION] * 7
    task.max_jerk = [JERK] * 7
    motion = ruckig.Trajectory(7)
    ruckig.Ruckig(7).calculate(task, motion)
    return motion.duration


def toppra_motion(way):
    from toppra import SplineInterpolator, algorithm, constraint

    places = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(way, axis=0), axis=1))])
    ranges = [
        kind(np.array([[-limit, limit]] * way.shape[1]))
        for kind, limit in (
            (constraint.JointVelocityConstraint, VELOCITY),
            (constraint.JointAccelerationConstraint, ACCELERATION),
        )
    ]
    path = SplineInterpolator(places, way)
    return algorithm.TOPPRA(ranges, path, solver_wrapper="seidel").compute_trajectory().duration


def ours(points, limits):
    points = torch.as_tensor(points, dtype=torch.float64)
    for function, repeats in ((minimum_duration, 1), (minimum_time, 10)):
        motion, seconds = timed(lambda function=function: function(points, limits), repeats)
        yield function.__name__, motion.times[-1].item(), seconds


def rows():
    task = "7 joints, rest to rest, up to 1.6 rad"
    yield (task, "ruckig", *timed(ruckig_motion, 50))
    goal = [[0.0] * 7, [1.0 + 0.1 * joint for joint in range(7)]]
    limits = Limits(velocity=VELOCITY, acceleration=ACCELERATION, jerk=JERK)
    for row in ours(goal, limits):
        yield (task, *row)
    for task, way in WAYS.items():
        yield (task, "toppra", *timed(lambda way=way: toppra_motion(way), 10))
        for row in ours(way, Limits(velocity=VELOCITY, acceleration=ACCELERATION)):
            yield (task, *row)


def page_table():
    """The saved table for a reader, a task a line."""
    with RESULTS.open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    lines = [
        "Durations of the motions, and the processor's time that they take to compute, on one "
        "thread, in one run:",
        "",
        "| task | limits on velocity, acceleration, jerk | peer | "
        + " | ".join(f"`{name}`" for name in OURS)
        + " |",
        "|---|---|---|---|---|",
    ]
    for task in dict.fromkeys(row["task"] for row in found):
        jerk = f"{JERK:g}" if task not in WAYS else "none"
        cells = [task, f"{VELOCITY:g}, {ACCELERATION:g}, {jerk}"]
        for row in found:
            if row["task"] == task:
                peer = row["what"] + " " if row["what"] not in OURS else ""
                seconds = _short(float(row["computing_s"]))
                cells.append(f"{peer}{float(row['duration_s']):.3f} s in {seconds}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _short(seconds):
    """To two digits: the next run says others."""
    return f"{seconds:.2g} s" if seconds >= 0.1 else f"{seconds * 1e3:.2g} ms"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--check", action="store_true", help="only compare the page")
    options = parser.parse_args()
    if not (options.page or options.check):
        measure()
    command = "python -m benchmarks.bench_trajectory_peers --page"
    check_or_write(PAGE, {"peers": page_table()}, options.check, command)


def measure():
    missing = [name for name in PEERS if importlib.util.find_spec(name) is None]
    if missing:
        print(f"Nothing is measured: {' and '.join(missing)} not installed.")
        return
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["task", "what", "duration_s", "computing_s"])
        for task, what, duration, seconds in rows():
            writer.writerow([task, what, f"{duration:.4f}", f"{seconds:.3g}"])
            print(f"{task:38} {what:18} {duration:8.3f} s  in {seconds * 1e3:10.3f} ms")


if __name__ == "__main__":
    main()
