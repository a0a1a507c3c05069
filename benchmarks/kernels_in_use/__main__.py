"""`python -m benchmarks.kernels_in_use`: check the Functions of the kernel libraries in use.

Writes benchmarks/results/kernels_in_use.csv; `python -m benchmarks.kernels_in_use.tables` makes
docs/kernels-in-use.md of it. One package after the other, each in a process of its own. Run it in
`.kernels-venv` (`python -m benchmarks.kernels_in_use.setup`). `--only liger,peft` runs those
packages alone, and leaves the other rows as they are; `--function RMSNormFunction` runs those of
them whose name ends so, `--resume` those that have arguments and did not run.
"""

import argparse
import csv
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.rows import read_rows, write_rows

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "kernels_in_use.csv"
COLUMNS = [
    "package", "version", "function", "ran", "why", "gradient", "clause", "verdict", "detail",
    "lacking", "untidy", "holds", "seconds",
]  # fmt: skip

Row = dict[str, str]


def read() -> list[Row]:
    """The rows as they were measured."""
    return read_rows(RESULTS)


def key_of(row: Row) -> tuple[str, str]:
    """Which Function a row is of."""
    return row["package"], row["function"]


def package_of(stem: str) -> str:
    """The name on PyPI, read from the case file without importing the package."""
    text = (HERE / f"cases_{stem}.py").read_text(encoding="utf-8")
    return re.search(r'^PACKAGE = "(.+)"$', text, re.MULTILINE).group(1)


def examine(stem: str, end: str, resume: bool) -> Iterator[Row]:
    """Run one package in its own process; its rows as they come."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.kernels_in_use._worker", stem]
    command += ["--function", end, *(["--resume"] if resume else [])]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:
        for line in process.stdout:
            if line.startswith("row:"):
                yield from csv.DictReader([line[4:]], fieldnames=COLUMNS)
    if process.returncode:
        raise SystemExit(f"{stem}: the worker ended with {process.returncode}")


def write(found: list[Row]) -> None:
    """Write rows in the place of the older ones of the same Functions."""
    names = {key_of(row) for row in found}
    kept = [row for row in (read() if RESULTS.exists() else []) if key_of(row) not in names]
    rows = sorted([*kept, *found], key=lambda row: (row["package"].lower(), row["function"]))
    write_rows(RESULTS, COLUMNS, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="packages by the name of their case file")
    stems = sorted(path.stem.removeprefix("cases_") for path in HERE.glob("cases_*.py"))
    parser.add_argument("--function", default="", help="ends of names, with commas")
    parser.add_argument("--resume", action="store_true", help="those that did not run alone")
    options = parser.parse_args()
    chosen = [it for it in options.only.split(",") if it] or stems
    if unknown := set(chosen) - set(stems):
        raise SystemExit(f"no cases for {sorted(unknown)}; there are {stems}")
    for stem in chosen:
        found: list[Row] = []
        for row in examine(stem, options.function, options.resume):
            print(*(row[key] for key in ("function", "clause", "why")), flush=True)
            found.append(row)
            write(found)
        ran = {row["function"] for row in found if row["ran"] == "yes"}
        print(f"{package_of(stem)}: {len(ran)} Functions ran", flush=True)


if __name__ == "__main__":
    main()
