"""The kernels of this tree beside those of another checkout of the project, in turns.

``python -m benchmarks.bench_kernels --beside OTHER/src`` prints a table and writes
``results/kernels.csv``; without ``--beside`` it does nothing. It decides whether a way to write a
kernel earns its keep: what gives less than 1.3 times on the whole operation is not worth its lines.

Each tree has a process of its own, which waits while the other one works. They take turns of a
tenth of a second for each operation, and the least time of a turn counts. A ratio is that of two
turns side by side; its median over the rounds and their middle half are kept, with the load that
other work put on the machine.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "kernels.csv"
SHAPES = ((512, 1024, 7), (64, 32, 7))
TURN = 0.1


def works() -> dict[str, Callable[[], Any]]:
    """The operations, whole: what a user calls, with its allocations and its checks."""
    import torch

    from pullback.trajectory import State, differentiate, integrate

    made: dict[str, Callable[[], Any]] = {}
    start = State(position=0.0, velocity=0.0, acceleration=0.0)
    for shape in SHAPES:
        x = torch.randn(shape, requires_grad=True)
        control = torch.randn(shape[0], shape[1] - 1, shape[2], requires_grad=True)
        steps = torch.rand(shape[1] - 1) + 0.5
        weights = [torch.randn(shape) for _ in range(4)]
        calls = {
            "differentiate": (lambda x: differentiate(x, 0.02), x),
            "differentiate, uneven": (lambda x, dt=steps: differentiate(x, dt), x),
            "integrate": (lambda u: integrate(u, 0.02, start=start, order="jerk"), control),
        }
        for name, (call, given) in calls.items():

            def forward(call: Any = call, given: Any = given) -> None:
                with torch.no_grad():
                    call(given)

            def both(call: Any = call, given: Any = given, weights: Any = weights) -> None:
                motion = call(given)
                outputs = motion.position, motion.velocity, motion.acceleration, motion.jerk
                torch.autograd.grad(outputs, given, weights)

            title = f"{name} {'x'.join(map(str, shape))}"
            made[f"{title}, forward"] = forward
            made[f"{title}, both"] = both
    return made


def serve(threads: int) -> None:
    """Take a turn at an operation for each name that comes in; gives its least seconds."""
    import torch

    from benchmarks.bench_trajectory import keep_freed_memory

    torch.set_num_threads(threads)
    keep_freed_memory()
    made = works()
    for work in made.values():
        work()
    print(json.dumps(list(made)), flush=True)
    for line in sys.stdin:
        work, least, turns = made[line.rstrip("\n")], float("inf"), 0
        end = time.perf_counter() + TURN
        while turns < 3 or time.perf_counter() < end:
            begin = time.perf_counter()
            work()
            least, turns = min(least, time.perf_counter() - begin), turns + 1
        print(json.dumps(least), flush=True)


class Tree:
    """A process that works with the package at a path."""

    def __init__(self, source: Path, threads: int) -> None:
        root = Path(__file__).parents[1]
        path = os.pathsep.join([str(source.resolve()), str(root)])
        command = [sys.executable, "-m", "benchmarks.bench_kernels", "--serve", str(threads)]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path},
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.names: list[str] = self._read()

    def turn(self, name: str) -> float:
        """The least seconds of an operation in one turn."""
        assert self.process.stdin is not None
        print(name, file=self.process.stdin, flush=True)
        return self._read()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


def compare(beside: Path, threads: int, rounds: int) -> list[dict[str, Any]]:
    ours, other = Tree(Path(__file__).parents[1] / "src", threads), Tree(beside, threads)
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in ours.names}
    for number in range(rounds):
        for name, taken in pairs.items():
            if number % 2:
                second, first = other.turn(name), ours.turn(name)
            else:
                first, second = ours.turn(name), other.turn(name)
            taken.append((first, second))
    rows = []
    for name, taken in pairs.items():
        ratios = [first / second for first, second in taken]
        low, _, high = statistics.quantiles(ratios, n=4)
        rows.append(
            {
                "operation": name,
                "threads": threads,
                "ours_us": round(min(first for first, _ in taken) * 1e6, 1),
                "beside_us": round(min(second for _, second in taken) * 1e6, 1),
                "ratio": round(statistics.median(ratios), 2),
                "low": round(low, 2),
                "high": round(high, 2),
                "rounds": rounds,
                "load": round(os.getloadavg()[0], 1),
            }
        )
    for tree in (ours, other):
        assert tree.process.stdin is not None
        tree.process.stdin.close()
        tree.process.wait()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--beside", type=Path, help="the src folder of another checkout")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--serve", type=int, metavar="THREADS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    if options.beside is None:
        print("Nothing to compare: pass --beside OTHER/src.")
        return
    rows = [row for n in (2, 1) for row in compare(options.beside, n, options.rounds)]
    for row in rows:
        print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
