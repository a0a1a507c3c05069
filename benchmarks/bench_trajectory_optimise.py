"""Least-jerk motions for 1,000 arms: 256 samples, 7 joints, two via points, beside scipy.

    python -m benchmarks.bench_trajectory_optimise [--page | --check]

Every row of a kind solves the same discrete problem; the positions are compared before anything is
timed. Peers that go trajectory by trajectory are timed on fewer, as the table says. Each figure is
the least of several rounds in which all take turns, in one process on two threads, which scipy's
linear algebra uses too. The table is saved after each round, and at the end written into the page;
`--page` writes the page from the saved table, `--check` says whether it stands there.
"""

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.linalg
import scipy.optimize
import torch

from benchmarks.markers import check_or_write
from pullback.trajectory import Limits, minimum_jerk

# What a cubic spline with a knot at each sample is, in its coefficients: see plans/_plan.py.
POSITION, VELOCITY = (1 / 6, 4 / 6, 1 / 6), (-0.5, 0.0, 0.5)
ACCELERATION, JERK = (1.0, -2.0, 1.0), (-1.0, 3.0, -3.0, 1.0)
RESULTS = Path(__file__).parent / "results" / "trajectory_optimise.csv"
PAGE = Path(__file__).parents[1] / "docs" / "trajectory-optimise.md"
BATCH, SAMPLES, JOINTS = 1000, 256, 7
TIMES = torch.tensor([0.0, 0.62, 1.34, 2.0], dtype=torch.float64)
ROUNDS, THREADS = 6, 2
DENSE, DENSE_LIMITED = "scipy.linalg.solve, dense, each", "scipy.optimize.nnls, dense, each"
# A tenth less is more than some joints can do without: they would be refused.
TIGHT = 0.98


def rows_of(form: tuple[float, ...]) -> np.ndarray:
    """A form at every place, ``[places, coefficients]``."""
    size = SAMPLES + 2
    return np.stack([np.eye(size)[k : k + len(form)].T @ form for k in range(size + 1 - len(form))])


def problem() -> tuple[torch.Tensor, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Points, and the system that a scipy user would set up."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(BATCH, 4, JOINTS, generator=generator, dtype=torch.float64)
    places = (SAMPLES - 1) * TIMES.numpy() / TIMES[-1].item()
    away = np.abs(places[:, None] - np.arange(-1, SAMPLES + 1))
    met = (np.clip(2 - away, 0, None) ** 3 - 4 * np.clip(1 - away, 0, None) ** 3) / 6
    ends = [rows_of(form)[[0, -1]] for form in (VELOCITY, ACCELERATION)]
    rows = np.concatenate([met, ends[0][:1], ends[1][:1], ends[0][1:], ends[1][1:]])
    jerk = rows_of(JERK)
    few, size = rows.shape
    dense = jerk.T @ jerk + rows.T @ rows
    lower = np.zeros((len(JERK), size))
    for d in range(len(JERK)):
        lower[d, : size - d] = np.diag(dense, -d)
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


def nonnegative_each(
    saddle: np.ndarray, rows: np.ndarray, positions_free: np.ndarray, limits: Limits, count: int
) -> np.ndarray:
    """Within limits by the least distance of Lawson and Hanson, chapter 23: dense, each joint."""
    size = rows.shape[1]
    metric = saddle[:size, :size] - rows.T @ rows
    # In the directions that keep the conditions, and in units in which the metric is one.
    basis = np.linalg.svd(rows)[2][len(rows) :].T
    basis = basis @ np.linalg.inv(np.linalg.cholesky(basis.T @ metric @ basis)).T
    step = float(TIMES[-1]) / (SAMPLES - 1)
    forms = {"velocity": VELOCITY, "acceleration": ACCELERATION, "jerk": JERK}
    found = []
    for one in range(count):
        for joint in range(JOINTS):
            level, sides = [], []
            for power, kind in enumerate(forms, start=1):
                if kind not in limits.given:
                    continue
                limit = float(getattr(limits, kind)[one, joint]) * step**power
                moved = rows_of(forms[kind]) @ basis / limit
                # A given end is not limited: it is what it is.
                keep = slice(None) if kind == "jerk" else slice(1, -1)
                sides.append(moved[keep])
                plain = rows_of(forms[kind]) @ positions_free[one, :, joint]
                level.append(plain[keep] / limit)
            both, reached = np.concatenate(sides), np.concatenate(level)
            stacked = np.vstack(
                [np.hstack([-both.T, both.T]), np.concatenate([reached - 1, -reached - 1])]
            )
            target = np.eye(len(stacked))[-1]
            pushes, _ = scipy.optimize.nnls(stacked, target, maxiter=100_000)
            missed = stacked @ pushes - target
            found.append(positions_free[one, :, joint] + basis @ (-missed[:-1] / missed[-1]))
    return positions(np.stack(found).reshape(count, JOINTS, size).transpose(0, 2, 1))


def coefficients_each(saddle: np.ndarray, rows: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Of the motions without limits."""
    full = np.zeros((len(right), len(saddle), JOINTS))
    full[:, rows.shape[1] :] = right
    full[:, : rows.shape[1]] = rows.T @ right
    return np.linalg.solve(saddle, full)[:, : rows.shape[1]]


def check(found: np.ndarray, wanted: torch.Tensor, most: float) -> None:
    difference = np.abs(found - wanted[: len(found)].numpy()).max()
    if not difference < most:
        raise SystemExit(f"the peers disagree by {difference:.3g} rad")


def both_ways(leaves: torch.Tensor, limits: Limits | None) -> None:
    motion = minimum_jerk(leaves, TIMES, limits=limits)
    (motion.position.sum() + motion.jerk.square().sum()).backward()
    leaves.grad = None


def runs() -> dict[str, tuple[int, Callable[[], object]]]:
    points, lower, rows, saddle, right = problem()
    own_times = TIMES * torch.linspace(0.8, 1.2, BATCH, dtype=torch.float64).unsqueeze(-1)
    own_times = own_times + torch.tensor([0.0, 0.01, 0.0, 0.0], dtype=torch.float64)
    leaves = points.clone().requires_grad_()
    plain = minimum_jerk(points, TIMES)
    peaks = {k: getattr(plain, k).abs().amax(-2) for k in ("velocity", "acceleration", "jerk")}
    every = Limits(**{kind: TIGHT * peak for kind, peak in peaks.items()})
    of_velocity = Limits(velocity=TIGHT * peaks["velocity"])
    loose = torch.tensor([TIGHT, 1.5, 1.5] * 3, dtype=torch.float64)[:JOINTS]
    some = Limits(**{kind: loose * peak for kind, peak in peaks.items()})
    oracle = plain.position - points[:, :1]
    check(dense_each(saddle, rows, right[:5]), oracle, 1e-5)
    check(banded_each(lower, rows, right[:5]), oracle, 1e-5)
    check(dense_shared(saddle, rows, right), oracle, 1e-5)
    first = Limits(**{kind: getattr(every, kind)[:1] for kind in every.given})
    kept = minimum_jerk(points[:1], TIMES, limits=first).position - points[:1, :1]
    unlimited = coefficients_each(saddle, rows, right[:1])
    check(nonnegative_each(saddle, rows, unlimited, first, 1), kept, 1e-4)
    return {
        "minimum_jerk": (BATCH, lambda: minimum_jerk(points, TIMES)),
        "the same, forward and backward": (BATCH, lambda: both_ways(leaves, None)),
        "times of its own for each": (BATCH, lambda: minimum_jerk(points, own_times)),
        "limits that a third of the joints meet": (
            BATCH,
            lambda: minimum_jerk(points, TIMES, limits=some),
        ),
        "velocity limits that all joints meet": (
            BATCH,
            lambda: minimum_jerk(points, TIMES, limits=of_velocity),
        ),
        "three limits that all joints meet": (
            BATCH,
            lambda: minimum_jerk(points, TIMES, limits=every),
        ),
        "the same, with backward": (BATCH, lambda: both_ways(leaves, every)),
        DENSE: (20, lambda: dense_each(saddle, rows, right[:20])),
        "scipy.linalg.lu_solve, dense, shared": (
            BATCH,
            lambda: dense_shared(saddle, rows, right),
        ),
        "scipy.linalg.solveh_banded, each": (200, lambda: banded_each(lower, rows, right[:200])),
        DENSE_LIMITED: (1, lambda: nonnegative_each(saddle, rows, unlimited, first, 1)),
    }


def save(table: dict[str, tuple[int, Callable[[], object]]], best: dict[str, float]) -> list:
    rates = {name: count / best[name] for name, (count, _) in table.items()}
    lines = [
        {
            "what": name,
            "trajectories": count,
            "seconds": f"{best[name]:.5f}",
            "trajectories_per_second": f"{rates[name]:.4g}",
            "times_scipy_dense": f"{rates[name] / rates[DENSE]:.3g}",
            "times_scipy_dense_limited": f"{rates[name] / rates[DENSE_LIMITED]:.3g}",
        }
        for name, (count, _) in table.items()
    ]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return lines


def page_table() -> str:
    """The saved table for a reader: how many a second, and how that compares."""
    with RESULTS.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lines = [
        f"{SAMPLES} samples, {JOINTS} joints, 4 points, {THREADS} threads, all in one run:",
        "",
        "| what | trajectories per second | times scipy's dense solve | times dense `nnls` |",
        "|---|---|---|---|",
    ]
    for row in rows:
        # Two digits: the next run says others.
        rate, dense, limited = (float(row[name]) for name in list(row)[3:])
        lines.append(f"| {row['what']} | {_two(rate)} | {_two(dense)} | {_two(limited)} |")
    return "\n".join(lines)


def _two(value: float) -> str:
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--check", action="store_true", help="only compare the page")
    options = parser.parse_args()
    if not (options.page or options.check):
        measure()
    command = "python -m benchmarks.bench_trajectory_optimise --page"
    check_or_write(PAGE, {"throughput": page_table()}, options.check, command)


def measure() -> None:
    torch.set_num_threads(THREADS)
    table = runs()
    best = dict.fromkeys(table, float("inf"))
    lines = []
    for _ in range(ROUNDS):
        for name, (_, run) in table.items():
            begin = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - begin)
        lines = save(table, best)
    print(f"{SAMPLES} samples, {JOINTS} joints, 4 points; {THREADS} threads, least of {ROUNDS}")
    print(f"{'':40}{'count':>6}{'seconds':>10}{'per second':>12}{'x dense':>9}{'x nnls':>9}")
    for line in lines:
        what, count, seconds, rate, ratio, limited = line.values()
        print(f"{what:40}{count:>6}{seconds:>10}{rate:>12}{ratio:>9}{limited:>9}")


if __name__ == "__main__":
    main()
