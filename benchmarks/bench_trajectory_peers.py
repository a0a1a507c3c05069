"""Motions beside ruckig (state to state) and toppra (a given path), in one run.

    python -m benchmarks.bench_trajectory_peers

The peers are installed by hand: pip install --no-deps ruckig==0.19.4 toppra==0.6.10.
"""

import csv
import logging
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from pullback.trajectory import Limits, minimum_duration, minimum_time

RESULTS = Path(__file__).parent / "results" / "trajectory_peers.csv"
VELOCITY, ACCELERATION, JERK = 1.0, 4.0, 40.0
WAYS = {
    "three points": np.array([[0.0], [0.1], [5.0]]),
    "four points": np.array([[0.0, 1.0], [0.1, 1.0], [2.0, -1.0], [2.1, 0.0]]),
}


def timed(function, repeats):
    """The median of the seconds that a call takes, after a first one, and its result."""
    result, seconds = function(), []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
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
    for function, repeats in ((minimum_duration, 3), (minimum_time, 10)):
        motion, seconds = timed(lambda function=function: function(points, limits), repeats)
        yield function.__name__, motion.times[-1].item(), seconds


def rows():
    task = "7 joints, rest to rest"
    yield (task, "ruckig", *timed(ruckig_motion, 50))
    goal = [[0.0] * 7, [1.0 + 0.1 * joint for joint in range(7)]]
    limits = Limits(velocity=VELOCITY, acceleration=ACCELERATION, jerk=JERK)
    for row in ours(goal, limits):
        yield (task, *row)
    for task, way in WAYS.items():
        yield (task, "toppra", *timed(lambda way=way: toppra_motion(way), 10))
        for row in ours(way, Limits(velocity=VELOCITY, acceleration=ACCELERATION)):
            yield (task, *row)


def main():
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["task", "what", "duration_s", "computing_s"])
        for task, what, duration, seconds in rows():
            writer.writerow([task, what, f"{duration:.4f}", f"{seconds:.3g}"])
            print(f"{task:24} {what:18} {duration:8.3f} s  in {seconds * 1e3:10.3f} ms")


if __name__ == "__main__":
    main()
