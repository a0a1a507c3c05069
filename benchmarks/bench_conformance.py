"""How long a check takes: seconds a Function, all clauses but `compile`, and each clause.

Run in one process with two threads on every right specimen of the tests; each figure is the least
of five repeats, after one that is not counted. The median has to stay at one second or less.
"""

import csv
import statistics
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from tests.specimens.right import edges, smooth

from pullback import check
from pullback.conformance.clauses import CLAUSES

RESULTS = Path(__file__).parent / "results" / "conformance.csv"
LIMIT = 1.0
REPEATS = 5
CLAUSE_IDS = [clause.id for clause in CLAUSES if clause.id != "compile"]


def seconds(specimen, clauses):
    """The least seconds of one check."""
    inputs = specimen.inputs()
    check(specimen.function, *inputs, clauses=clauses, gradient=specimen.gradient)
    best = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        report = check(specimen.function, *inputs, clauses=clauses, gradient=specimen.gradient)
        best = min(best, time.perf_counter() - started)
        assert report.ok, report
    return best


def main():
    torch.set_num_threads(2)
    specimens = {s.id: s for s in [*smooth.SPECIMENS, *edges.SPECIMENS]}
    rows = [("function", name, seconds(s, CLAUSE_IDS)) for name, s in specimens.items()]
    sample = list(specimens.values())[::4]
    for clause in CLAUSE_IDS:
        rows.append(("clause", clause, statistics.median(seconds(s, clause) for s in sample)))
    functions = [value for kind, _, value in rows if kind == "function"]
    median = statistics.median(functions)
    rows.append(("median", f"{len(functions)} functions", median))

    table = Table(title=f"Seconds a check without compile, torch {torch.__version__}, two threads")
    table.add_column("what")
    table.add_column("seconds", justify="right")
    for _, name, value in rows:
        table.add_row(name, f"{value:.3f}")
    Console().print(table)
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["kind", "name", "seconds"])
        writer.writerows((kind, name, f"{value:.4f}") for kind, name, value in rows)
    within = "within" if median <= LIMIT else "ABOVE"
    print(f"median {median:.3f} s over {len(functions)} Functions, {within} the limit of {LIMIT} s")


if __name__ == "__main__":
    main()
