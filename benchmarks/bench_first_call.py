"""What the first call of a process costs: seconds of processor time, kernels kept on disk before.

``python -m benchmarks.bench_first_call`` prints a table and writes ``results/first_call.csv``. Each
of ten processes imports torch and the room, and differentiates, integrates and plans for the first
time; ``over torch`` is the median beside that of the import of torch in the same processes.
"""

import csv
import json
import statistics
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "first_call.csv"
PROCESSES = 10
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


def main() -> None:
    """Measure, print and write."""
    runs = []
    for _ in range(PROCESSES + 1):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
        )
        runs.append(json.loads(done.stdout))
    del runs[0]  # it may have compiled
    torch_seconds = statistics.median(run["import torch"] for run in runs)
    rows = []
    for name in runs[0]:
        seconds = sorted(run[name] for run in runs)
        median = statistics.median(seconds)
        spread = f"{seconds[0]:.4f} to {seconds[-1]:.4f}"
        rows.append((name, f"{median:.4f}", spread, f"{median / torch_seconds:.3f}"))
        print(f"{name:28} {median:8.4f} s   {spread}   {median / torch_seconds:.3f} x torch")
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("what", "seconds", "least_to_most", "over_torch"))
        writer.writerows(rows)


if __name__ == "__main__":
    main()
