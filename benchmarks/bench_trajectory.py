"""The cost of `differentiate` and `integrate`, beside the memory that must move and other ways.

``python -m benchmarks.bench_trajectory`` prints a table, writes ``results/trajectory.csv``.
The floor is the time in which a copy of 128 MB, measured in the same run, moves as many bytes as
the job must: forward reads u and writes four outputs, backward reads four and writes one. Whether
a tensor of some megabytes pays for pages that the system must clear first depends on what else
lies on the heap; so the process keeps what it has freed, as in a program that has run for a while.
Copy and variants take turns, each time in another order, and the least time of each counts: other
work on the machine spoils none of them, nor does what the one before has left in the caches.

"bare" is a `torch.autograd.Function` that allocates four outputs and one gradient and computes
nothing: what torch's own machinery costs on the way. "bare, with the kernels" runs those of
`differentiate` in it, with nothing checked, chosen, batched or differentiated twice: no Python
around the kernels would be less.
"""

import argparse
import csv
import ctypes
import functools
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pullback.trajectory import State, backend_used, differentiate, integrate
from pullback.trajectory.kernels.stencil._cpu import apply, apply_adjoint
from pullback.trajectory.kernels.stencil._weights import Layout, uniform_table

RESULTS = Path(__file__).parent / "results" / "trajectory.csv"
DT = 0.02
PAIR = "ours", "bare, with the kernels"
LAYOUT = Layout("central", (), ())
Four = tuple[Tensor, Tensor, Tensor, Tensor]


def ours(x: Tensor) -> Four:
    motion = differentiate(x, DT)
    return motion.position, motion.velocity, motion.acceleration, motion.jerk


class Bare(torch.autograd.Function):
    """One input, four outputs, no work."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Four:
        return (
            torch.empty_like(x),
            torch.empty_like(x),
            torch.empty_like(x),
            torch.empty_like(x),
        )

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        return torch.empty_like(cotangents[0])


class BareKernels(torch.autograd.Function):
    """The kernels of `differentiate` and nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, conditions: Tensor, weights: Tensor) -> Four:
        ctx.weights = weights
        return apply(x, conditions, weights, LAYOUT.geometry)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        gradient, _ = apply_adjoint(cotangents, ctx.weights, LAYOUT.geometry)
        return gradient, None, None


def bare_kernels(x: Tensor) -> Callable[[Tensor], Four]:
    """Prepare what they need for positions like x."""
    weights = uniform_table(LAYOUT, DT, x.device, x.dtype)
    conditions = torch.empty(len(x), 0, x.shape[2])
    return lambda x: BareKernels.apply(x, conditions, weights)


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


def integrating(backend: Literal["auto", "reference"]) -> Callable[[Tensor], Four]:
    """Jerk to everything below it; the reference is running sums in torch."""
    start = State(position=0.0, velocity=0.0, acceleration=0.0)

    def run(control: Tensor) -> Four:
        motion = integrate(control, DT, start=start, order="jerk", backend=backend)
        return motion.position, motion.velocity, motion.acceleration, motion.jerk

    return run


def forward(call: Callable[[Tensor], Four], x: Tensor) -> None:
    with torch.no_grad():
        call(x)


def both(call: Callable[[Tensor], Four], x: Tensor, cotangents: Four) -> None:
    torch.autograd.grad(call(x), x, cotangents)


def take_turns(works: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Least seconds of each work, at least three times each and for so long together."""
    least = dict.fromkeys(works, float("inf"))
    end = time.perf_counter() + seconds
    turns, order = 0, random.Random(0)
    while turns < 4 or time.perf_counter() < end:
        for name, work in order.sample(sorted(works.items()), len(works)):
            begin = time.perf_counter()
            work()
            if turns > 0:  # the first one warms up
                least[name] = min(least[name], time.perf_counter() - begin)
        turns += 1
    return least


def measure(shape: tuple[int, ...], seconds: float) -> list[dict[str, Any]]:
    x = torch.randn(shape, requires_grad=True)
    cotangents = tuple(torch.randn(shape) for _ in range(4))
    source = torch.randn(1 << 25)
    target = torch.empty_like(source)
    control = torch.randn(shape[0], shape[1] - 1, shape[2], requires_grad=True)
    calls: dict[str, tuple[Callable[[Tensor], Four], Tensor]] = {
        "ours": (ours, x),
        "bare": (Bare.apply, x),
        "bare, with the kernels": (bare_kernels(x), x),
        "slicing autograd": (slicing, x),
        "integrate": (integrating("auto"), control),
        "integrate, running sums": (integrating("reference"), control),
    }
    copies: dict[str, Callable[[], Any]] = {"copy": lambda: target.copy_(source)}
    # A job that fits the caches would find them emptied by the copies: it takes turns without.
    large = x.numel() > 1_000_000
    works: dict[str, Callable[[], Any]] = {}
    for name, (call, given) in calls.items():
        works[f"{name}, both"] = functools.partial(both, call, given, cotangents)
        works[f"{name}, forward"] = functools.partial(forward, call, given)
    if large:
        least = take_turns(copies | works, seconds)
    else:
        # The two that are compared to a few microseconds come after each other alone: what a job
        # finds in the caches is what the one before it has left.
        pair = {name: work for name, work in works.items() if name.startswith(PAIR)}
        least = take_turns({n: w for n, w in works.items() if n not in pair}, seconds)
        least |= take_turns({n: w for n, w in pair.items() if n.endswith("both")}, seconds)
        least |= take_turns({n: w for n, w in pair.items() if n.endswith("forward")}, seconds)
        least |= take_turns(copies, 2)
    # The dense formula is quadratic in the horizon: seconds at 1024, gigabytes at 4096.
    if shape[1] <= 1024:
        call = dense(shape[1])
        calls["dense matrices"] = (call, x)
        works = {"dense matrices, both": functools.partial(both, call, x, cotangents)}
        works["dense matrices, forward"] = functools.partial(forward, call, x)
        least |= take_turns(works, 1)
    share = 10 * x.numel() / (2 * source.numel())
    floor = least["copy"] * share
    return [
        {
            "shape": "x".join(map(str, shape)),
            "variant": name,
            "forward_us": round(least[f"{name}, forward"] * 1e6, 1),
            "forward_backward_us": round(least[f"{name}, both"] * 1e6, 1),
            "floor_us": round(floor * 1e6, 1),
            "over_floor": round(least[f"{name}, both"] / floor, 2),
            "above_floor_us": round((least[f"{name}, both"] - floor) * 1e6, 1),
        }
        for name in calls
    ]


def grow(batch: int, short: int, long: int, dof: int, seconds: float) -> float:
    """How many times as long the longer horizon takes, both in turns: bandwidth comes and goes."""
    works = {}
    for horizon in (short, long):
        x = torch.randn(batch, horizon, dof, requires_grad=True)
        cotangents = tuple(torch.randn(batch, horizon, dof) for _ in range(4))
        works[str(horizon)] = functools.partial(both, ours, x, cotangents)
    least = take_turns(works, seconds)
    return least[str(long)] / least[str(short)]


def keep_freed_memory() -> None:
    """Let glibc serve tensors of up to 32 MiB from its heap, and the heap shrink never."""
    if sys.platform == "linux":
        trim_threshold, map_threshold = -1, -3
        library = ctypes.CDLL(None)
        library.mallopt(map_threshold, 32 << 20)
        library.mallopt(trim_threshold, 1 << 30)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20, help="for each shape")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    rows: list[dict[str, Any]] = []
    for shape in ((512, 1024, 7), (64, 32, 7), (64, 512, 7), (64, 4096, 7)):
        for row in measure(shape, options.seconds):
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
            rows.append(row)
        save(rows)
    growth = round(grow(64, 512, 4096, 7, options.seconds), 2)
    print(f"8 x the horizon costs {growth} x the time; backend {backend_used(torch.zeros(1))}")
    rows.append({"shape": "64x4096x7 / 64x512x7", "variant": "ours", "forward_backward_us": growth})
    save(rows)


def save(rows: list[dict[str, Any]]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
