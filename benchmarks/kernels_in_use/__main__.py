"""`python -m benchmarks.kernels_in_use`: check the Functions of the kernel libraries in use.

Writes benchmarks/results/kernels_in_use.csv; `python -m benchmarks.kernels_in_use.tables` makes
docs/kernels-in-use.md of it. One package after the other, each in a process of its own. Run it in
`.kernels-venv` (`python -m benchmarks.kernels_in_use.setup`). `--only liger,peft` runs those
packages alone, and leaves the other rows as they are; `--function RMSNormFunction` runs those of them
whose name ends so.
"""

import argparse
import csv
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "kernels_in_use.csv"
COLUMNS = [
    "package", "version", "function", "ran", "why", "gradient", "clause", "verdict", "detail",
    "lacking", "untidy", "holds", "seconds",
]  # fmt: skip

Row = dict[str, str]


def read() -> list[Row]:
    """The rows as they were measured."""
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def package_of(stem: str) -> str:
    """The name on PyPI, read from the case file without importing the package."""
    text = (HERE / f"cases_{stem}.py").read_text(encoding="utf-8")
    return re.search(r'^PACKAGE = "(.+)"$', text, re.MULTILINE).group(1)


def examine(stem: str, end: str) -> list[Row]:
    """Run one package in its own process and read its rows."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.kernels_in_use._worker", stem]
    command += ["--function", end]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    rows = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:
        for line in process.stdout:
            if line.startswith("row:"):
                rows += csv.DictReader([line[4:]], fieldnames=COLUMNS)
                print(*(rows[-1][it] for it in ("function", "clause", "why")), flush=True)
    if process.returncode:
        raise SystemExit(f"{stem}: the worker ended with {process.returncode}")
    return rows


def write(rows: list[Row]) -> None:
    """Write the rows, by package and Function."""
    rows = sorted(rows, key=lambda row: (row["package"].lower(), row["function"]))
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="packages by the name of their case file")
    stems = sorted(path.stem.removeprefix("cases_") for path in HERE.glob("cases_*.py"))
    parser.add_argument("--function", default="", help="those whose name ends so")
    options = parser.parse_args()
    chosen = [it for it in options.only.split(",") if it] or stems
    if unknown := set(chosen) - set(stems):
        raise SystemExit(f"no cases for {sorted(unknown)}; there are {stems}")
    for stem in chosen:
        found = examine(stem, options.function)
        names = {row["function"]: row["ran"] for row in found}
        package = package_of(stem)
        kept = [
            row
            for row in (read() if RESULTS.exists() else [])
            if row["package"] != package or (options.function and row["function"] not in names)
        ]
        write([*found, *kept])
        ran = sum(it == "yes" for it in names.values())
        print(f"{package}: {ran} of {len(names)} Functions ran", flush=True)


if __name__ == "__main__":
    main()
