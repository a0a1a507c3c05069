"""What the first call of a process costs: seconds of processor time.

``python -m benchmarks.bench_first_call`` prints a table and writes ``results/first_call.csv``. Each
of ten processes imports torch and the room, and differentiates, integrates and plans for the first
time, its kernels kept on disk before; ``over torch`` is the median beside that of the import of
torch in the same processes. Then, as on a fresh machine, limits are kept and refused with nothing
on disk, three times each.
"""

import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "first_call.csv"
PROCESSES, FRESH = 10, 3
PROGRAM = """
import json, time
taken, clock = {}, time.process_time
def take(name, work):
    begin = clock()
    taken[name] = (work(), clock() - begin)[1]
take("import torch", lambda: __import__("torch"))
take("import pullback.trajectory", lambda: __import__("pullback.trajectory"))
import torch
from pullback.trajectory import State, differentiate, integrate, minimum_jerk
x = torch.randn(64, 32, 7, requires_grad=True)
points = torch.tensor([[0.0], [1.0]])
take("differentiate", lambda: differentiate(x, 0.02))
take("its backward", lambda: differentiate(x, 0.02).jerk.sum().backward())
take("differentiate again", lambda: differentiate(x, 0.02))
take("then integrate", lambda: integrate(x, 0.02, start=State(0.0, 0.0)))
take("then minimum_jerk", lambda: minimum_jerk(points, 1.0))
print(json.dumps(taken))
"""


LIMITED = """
import json, time, torch
from pullback.trajectory import Limits, minimum_jerk
begin = time.process_time()
try:
    minimum_jerk(torch.tensor([[0.0], [1.0]]), 1.0, samples=64, limits=Limits(velocity={limit}))
except ValueError:
    pass
print(json.dumps(dict([("{name}", time.process_time() - begin)])))
"""
# The least jerk needs 1.9, any motion 1.15.
FIRSTS = {"limits kept, nothing on disk": 1.6, "limits refused, nothing on disk": 0.9}


def run(program: str, cache: str | None = None) -> dict[str, float]:
    """The seconds that a program in a new process says, which may find kernels in one place."""
    place = {} if cache is None else {"NUMBA_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=True, env=os.environ | place,
    )  # fmt: skip
    return json.loads(done.stdout)


def first(name: str, limit: float) -> dict[str, float]:
    """Seconds of a first use with limits, as on a fresh machine."""
    with tempfile.TemporaryDirectory() as empty:
        return run(LIMITED.format(name=name, limit=limit), empty)


def main() -> None:
    """Measure, print and write."""
    runs = [run(PROGRAM) for _ in range(PROCESSES + 1)][1:]  # the first one may have compiled
    torch_seconds = statistics.median(one["import torch"] for one in runs)
    every = {name: [one[name] for one in runs] for name in runs[0]}
    for name, limit in FIRSTS.items():
        every[name] = [first(name, limit)[name] for _ in range(FRESH)]
    rows = []
    for name, seconds in every.items():
        median = statistics.median(seconds)
        spread = f"{min(seconds):.4f} to {max(seconds):.4f}"
        rows.append((name, f"{median:.4f}", spread, f"{median / torch_seconds:.3f}"))
        print(f"{name:34} {median:8.4f} s   {spread}   {median / torch_seconds:.3f} x torch")
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("what", "seconds", "least_to_most", "over_torch"))
        writer.writerows(rows)


if __name__ == "__main__":
    main()
