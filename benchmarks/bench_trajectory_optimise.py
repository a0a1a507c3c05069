"""Least-jerk motions for 1,000 arms: 256 samples, 7 joints, two via points, beside scipy.

    python -m benchmarks.bench_trajectory_optimise

Every row solves the same discrete problem; the positions are compared before anything is timed.
Peers that go trajectory by trajectory are timed on fewer, as the table says. Each figure is the
least of several repeats, interleaved, in one process on one thread.
"""

import csv
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.linalg
import torch

from pullback.trajectory import Limits, minimum_jerk
from pullback.trajectory._cubic import WIDTH, metric_band
from pullback.trajectory._least import condition_band
from pullback.trajectory._plan import make_plan
from pullback.trajectory._state import rest

RESULTS = Path(__file__).parent / "results" / "trajectory_optimise.csv"
BATCH, SAMPLES, JOINTS = 1000, 256, 7
TIMES = torch.tensor([0.0, 0.62, 1.34, 2.0], dtype=torch.float64)
REPEATS = 7


def problem() -> tuple[torch.Tensor, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Points, and the system that a scipy user would set up."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(BATCH, 4, JOINTS, generator=generator, dtype=torch.float64)
    plan = make_plan(points, TIMES, duration=None, start=rest, goal=rest, samples=SAMPLES, order=3)
    band = metric_band(3, SAMPLES, points.device) + condition_band(plan.conditions)
    size = SAMPLES + 2
    lower = np.zeros((WIDTH + 1, size))
    dense = np.zeros((size, size))
    for d in range(WIDTH + 1):
        lower[d, : size - d] = band[d:, d].numpy()
        dense += np.diag(lower[d, : size - d], -d)
        dense += np.diag(lower[d, : size - d], d) if d else 0
    rows = plan.conditions.numpy()
    few = rows.shape[0]
    saddle = np.block([[dense, rows.T], [rows, np.zeros((few, few))]])
    right = np.zeros((BATCH, few, JOINTS))
    right[:, :4] = (points - points[:, :1]).numpy()
    return points, lower, rows, saddle, right


def positions(c: np.ndarray) -> np.ndarray:
    return (c[..., :-2, :] + 4 * c[..., 1:-1, :] + c[..., 2:, :]) / 6


def dense_each(saddle: np.ndarray, rows: np.ndarray, right: np.ndarray) -> np.ndarray:
    full = np.zeros((len(saddle), JOINTS))
    found = []
    for one in right:
        full[:] = 0
        full[-len(one) :] = one
        # The metric plus A'A has A'b beside it.
        full[: rows.shape[1]] = rows.T @ one
        found.append(scipy.linalg.solve(saddle, full, assume_a="sym")[: rows.shape[1]])
    return positions(np.stack(found))


def banded_each(lower: np.ndarray, rows: np.ndarray, right: np.ndarray) -> np.ndarray:
    found = []
    for one in right:
        spread = scipy.linalg.solveh_banded(lower, rows.T, lower=True)
        found.append(spread @ np.linalg.solve(rows @ spread, one))
    return positions(np.stack(found))


def dense_shared(saddle: np.ndarray, rows: np.ndarray, right: np.ndarray) -> np.ndarray:
    size = rows.shape[1]
    full = np.zeros((len(saddle), len(right) * JOINTS))
    full[size:] = right.transpose(1, 0, 2).reshape(rows.shape[0], -1)
    full[:size] = rows.T @ full[size:]
    solved = scipy.linalg.lu_solve(scipy.linalg.lu_factor(saddle), full)[:size]
    return positions(solved.reshape(size, len(right), JOINTS).transpose(1, 0, 2))


def runs() -> dict[str, tuple[int, Callable[[], object]]]:
    points, lower, rows, saddle, right = problem()
    own_times = TIMES * torch.linspace(0.8, 1.2, BATCH, dtype=torch.float64).unsqueeze(-1)
    own_times = own_times + torch.tensor([0.0, 0.01, 0.0, 0.0], dtype=torch.float64)
    leaves = points.clone().requires_grad_()

    def both_ways() -> None:
        motion = minimum_jerk(leaves, TIMES)
        (motion.position.sum() + motion.jerk.square().sum()).backward()
        leaves.grad = None

    peak = minimum_jerk(points, TIMES).velocity.abs().amax(-2)
    limited = Limits(velocity=0.95 * peak[:50])
    oracle = minimum_jerk(points, TIMES).position - points[:, :1]
    checks = (
        (dense_each(saddle, rows, right[:5]), 5),
        (banded_each(lower, rows, right[:5]), 5),
        (dense_shared(saddle, rows, right), BATCH),
    )
    for found, count in checks:
        difference = np.abs(found - oracle[:count].numpy()).max()
        assert difference < 1e-5, difference
    return {
        "minimum_jerk": (BATCH, lambda: minimum_jerk(points, TIMES)),
        "minimum_jerk, forward and backward": (BATCH, both_ways),
        "minimum_jerk, times of its own for each": (BATCH, lambda: minimum_jerk(points, own_times)),
        "minimum_jerk, velocity limits that bind": (
            50,
            lambda: minimum_jerk(points[:50], TIMES, limits=limited),
        ),
        "scipy.linalg.solve, dense, each": (20, lambda: dense_each(saddle, rows, right[:20])),
        "scipy.linalg.lu_solve, dense, shared": (
            BATCH,
            lambda: dense_shared(saddle, rows, right),
        ),
        "scipy.linalg.solveh_banded, each": (200, lambda: banded_each(lower, rows, right[:200])),
    }


def main() -> None:
    torch.set_num_threads(1)
    table = runs()
    best = dict.fromkeys(table, float("inf"))
    for _ in range(REPEATS):
        for name, (_, run) in table.items():
            begin = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - begin)
    rates = {name: count / best[name] for name, (count, _) in table.items()}
    dense = rates["scipy.linalg.solve, dense, each"]
    lines = [
        {
            "what": name,
            "trajectories": count,
            "seconds": f"{best[name]:.5f}",
            "trajectories_per_second": f"{rates[name]:.0f}",
            "times_scipy_dense": f"{rates[name] / dense:.2f}",
        }
        for name, (count, _) in table.items()
    ]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    print(f"{SAMPLES} samples, {JOINTS} joints, 4 points; one thread, least of {REPEATS}")
    print(f"{'':42}{'count':>6}{'seconds':>10}{'per second':>12}{'x dense':>9}")
    for line in lines:
        what, count, seconds, rate, ratio = line.values()
        print(f"{what:42}{count:>6}{seconds:>10}{rate:>12}{ratio:>9}")


if __name__ == "__main__":
    main()
