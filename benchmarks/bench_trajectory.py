"""The cost of `differentiate`, beside the memory that must move and two other ways to do it.

``python -m benchmarks.bench_trajectory`` prints a table, writes ``results/bench_trajectory.csv``.
The floor is the time in which a large copy, measured in the same run, moves as many bytes as the
job must: forward reads u and writes four outputs, backward reads four and writes one. Two copies
are measured: into memory that is there already, and into memory that is allocated afresh (as every
output here is), which also pays for the pages. Both ratios are shown.
"""

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from pullback.trajectory import backend_used, differentiate

RESULTS = Path(__file__).parent / "results" / "bench_trajectory.csv"
DT = 0.02
Four = tuple[Tensor, Tensor, Tensor, Tensor]


def best(work: Callable[[], object], repeats: int) -> float:
    """Least seconds of some repeats: what is not due to other work on the machine."""
    work()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def copy_floors(units: float, elements: int, repeats: int) -> tuple[float, float]:
    """Seconds to move ``units`` times ``elements`` float32 by copies, warm and fresh."""
    source = torch.randn(max(elements, 1 << 22))
    target = torch.empty_like(source)
    moved = 2 * source.numel()
    scale = units * elements / moved
    warm = best(lambda: target.copy_(source), repeats)
    fresh = best(source.clone, repeats)
    return warm * scale, fresh * scale


def ours(x: Tensor) -> Four:
    motion = differentiate(x, DT)
    return motion.position, motion.velocity, motion.acceleration, motion.jerk


def dense(horizon: int) -> Callable[[Tensor], Four]:
    """The same derivatives by three matrices, as in cuRobo's CliqueTensorStep."""
    unit = differentiate(torch.eye(horizon), DT)
    matrices = (unit.velocity, unit.acceleration, unit.jerk)

    def run(x: Tensor) -> Four:
        velocity, acceleration, jerk = (matrix @ x for matrix in matrices)
        return x.clone(), velocity, acceleration, jerk

    return run


def slicing(x: Tensor) -> Four:
    """The same by slices and autograd, ends repeated."""
    line = torch.cat([x[:, :1], x[:, :1], x, x[:, -1:], x[:, -1:]], dim=1)
    far, near, here = line[:, :-4], line[:, 1:-3], line[:, 2:-2]
    next_, last = line[:, 3:-1], line[:, 4:]
    velocity = (next_ - near) / (2 * DT)
    acceleration = (next_ - 2 * here + near) / DT**2
    jerk = (last - 2 * next_ + 2 * near - far) / (2 * DT**3)
    return x.clone(), velocity, acceleration, jerk


def measure(call: Callable[[Tensor], Four], shape: tuple[int, ...], repeats: int) -> list[float]:
    x = torch.randn(shape, requires_grad=True)
    cotangents = tuple(torch.randn(shape) for _ in range(4))

    def both() -> None:
        torch.autograd.grad(call(x), x, cotangents)

    def forward() -> None:
        with torch.no_grad():
            call(x)

    return [best(forward, repeats), best(both, repeats)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for shape in ((512, 1024, 7), (64, 32, 7), (64, 512, 7), (64, 4096, 7)):
        small = shape[0] * shape[1] < 100_000
        repeats = options.repeats * (20 if small else 1)
        elements = shape[0] * shape[1] * shape[2]
        # The dense formula is quadratic in the horizon: a gigabyte-sized product at 4096.
        calls = {"ours": ours, "slicing autograd": slicing}
        if shape[1] <= 1024:
            calls["dense matrices"] = dense(shape[1])
        for name, call in calls.items():
            warm, fresh = copy_floors(10, elements, options.repeats)
            few = 5 if name == "dense matrices" and not small else repeats
            forward, both = measure(call, shape, few)
            rows.append(
                {
                    "shape": "x".join(map(str, shape)),
                    "variant": name,
                    "forward_us": round(forward * 1e6, 1),
                    "forward_backward_us": round(both * 1e6, 1),
                    "floor_warm_us": round(warm * 1e6, 1),
                    "floor_fresh_us": round(fresh * 1e6, 1),
                    "over_warm_floor": round(both / warm, 2),
                    "over_fresh_floor": round(both / fresh, 2),
                    "above_warm_floor_us": round((both - warm) * 1e6, 1),
                }
            )
            print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    times = {row["shape"]: row["forward_backward_us"] for row in rows if row["variant"] == "ours"}
    growth = times["64x4096x7"] / times["64x512x7"]
    print(f"8 x the horizon costs {growth:.2f} x the time; backend {backend_used(torch.zeros(1))}")
    rows.append({"shape": "64x4096x7 / 64x512x7", "variant": "ours", "over_warm_floor": growth})
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
