"""`python -m benchmarks.wild`: run the survey and write benchmarks/results/wild.csv.

One process for each package, and in it a forked child for each Function, so that a Function that
kills its process or hangs costs one answer. `--only entmax,roma` runs those packages alone and
leaves the other rows of the table as they are; `--state completed` leaves those as published.
"""

import argparse
import concurrent.futures
import csv
import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.rows import write_rows

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "wild.csv"
COLUMNS = [
    "package", "version", "function", "intent", "state", "first_order", "grad", "forward",
    "vmap", "hessian", "compile", "double", "detail",
]  # fmt: skip
STATES = ("published", "completed")
PACKAGE_SECONDS = 1500


def package_of(stem: str) -> str:
    """The name on PyPI, read from the case file without importing the package."""
    text = (HERE / f"cases_{stem}.py").read_text(encoding="utf-8")
    return re.search(r'^PACKAGE = "(.+)"$', text, re.MULTILINE).group(1)


def survey_package(stem: str, states: list[str]) -> list[dict[str, str]]:
    """Run one package in its own process and read its rows."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.wild._worker", stem, *states]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PACKAGE_SECONDS,
        check=False,
        env=environment,
        cwd=HERE.parents[1],
    )
    if done.returncode:
        raise SystemExit(f"{stem}: the worker ended with {done.returncode}\n{done.stderr[-2000:]}")
    rows = [line[4:] for line in done.stdout.split("\n") if line.startswith("row:")]
    print(f"{stem:28} {len(rows) // len(states):3} Functions", flush=True)
    return list(csv.DictReader(rows, fieldnames=COLUMNS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="packages by the name of their case file")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--state", choices=STATES, help="only this state; keep the other's rows")
    options = parser.parse_args()
    stems = sorted(path.stem.removeprefix("cases_") for path in HERE.glob("cases_*.py"))
    only = set(options.only.split(",")) - {""}
    if unknown := only - set(stems):
        raise SystemExit(f"no cases for {sorted(unknown)}; there are {stems}")
    packages = {package_of(stem) for stem in only}
    states = [options.state] if options.state else list(STATES)
    kept: list[dict[str, str]] = []
    if (only or options.state) and RESULTS.exists():
        with RESULTS.open(newline="") as file:
            kept = [
                row
                for row in csv.DictReader(file)
                if row["state"] not in states or (only and row["package"] not in packages)
            ]
    with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        chosen = [stem for stem in stems if not only or stem in only]
        answers = list(pool.map(lambda stem: survey_package(stem, states), chosen))
    rows = kept + [row for answer in answers for row in answer]
    rows.sort(
        key=lambda row: (row["package"].lower(), row["function"], row["state"] != "published")
    )
    RESULTS.parent.mkdir(exist_ok=True)
    write_rows(RESULTS, COLUMNS, rows)
    print(f"{len(rows) // 2} Functions -> {RESULTS.relative_to(HERE.parents[1])}")


if __name__ == "__main__":
    main()
