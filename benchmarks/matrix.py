"""`python -m benchmarks.matrix [VERSION ...] [--check]`: the tests on each torch that we support.

Makes one environment for each version under `.matrix/`, runs the tests of the rooms that stand on
torch there, and writes benchmarks/results/matrix.csv and the table of docs/torch.md. Without
versions, all of them run, one after the other. `--check` says whether the table is that of the CSV.

A test that passes only from some torch on says so by `tests.versions`: where pullback refuses by
name, the refusal itself is the test, and counts as refused; what a torch does not have is skipped.
"""

import argparse
import os
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from benchmarks.environments import ROOT, install
from benchmarks.markers import check_or_write
from benchmarks.rows import read_rows, write_rows

__all__ = ["count", "table"]

ENVIRONMENTS = ROOT / ".matrix"
RESULTS = ROOT / "benchmarks" / "results" / "matrix.csv"
PAGE = ROOT / "docs" / "torch.md"
COMMAND = "python -m benchmarks.matrix"
VERSIONS = (
    "2.7.1",
    "2.8.0",
    "2.9.1",
    "2.10.0",
    "2.11.0",
    "2.12.1",
    "2.13.0",
    "2.14.1",
    "2.15.0",
)
ROOMS = ("internal", "tensor", "gradients", "conformance", "recording")
COUNTS = ("passed", "failed", "refused", "skipped")
COLUMNS = ("torch", "room", *COUNTS, "seconds")

Row = dict[str, str]


def run_room(python: Path, room: str, processes: int) -> dict[str, int]:
    """Run the tests of one room and count how they end; what fails is printed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [str(python), "-m", "pytest", f"tests/{room}", "-q", "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", "--tb=short", "-r", "fE"]
        command += ["--numprocesses", str(processes), "--dist", "loadfile"]
        command += ["--max-worker-restart", "0"]  # loadfile waits for ever for a new one
        answer = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if answer.returncode not in {0, 1} or not report.exists():
            raise SystemExit(f"{' '.join(command)} ended by itself:\n{answer.stdout[-4000:]}")
        if answer.returncode == 1:
            print(answer.stdout[-20_000:])
        return count(ElementTree.parse(report).getroot())


def count(report: ElementTree.Element) -> dict[str, int]:
    """Count the tests of a JUnit report: passed, failed, refused (an expected refusal), skipped."""
    found = dict.fromkeys(COUNTS, 0)
    for case in report.iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            found["failed"] += 1
        elif skipped is not None:
            refused = skipped.get("type") == "pytest.xfail"
            found["refused" if refused else "skipped"] += 1
        else:
            found["passed"] += 1
    return found


def read() -> list[Row]:
    """The rows of the last run of each version and room."""
    if not RESULTS.exists():
        return []
    return read_rows(RESULTS)


def write(rows: Sequence[Row]) -> None:
    """Write the rows, in the order of versions and rooms."""
    order = [(version, room) for version in VERSIONS for room in ROOMS]
    known = [row for row in rows if (row["torch"], row["room"]) in order]
    known.sort(key=lambda row: order.index((row["torch"], row["room"])))
    write_rows(RESULTS, COLUMNS, known)


def table(rows: Sequence[Row]) -> str:
    """The table in Markdown: a line for each version, a column for each room."""
    cells = {(row["torch"], row["room"]): _cell(row) for row in rows}
    lines = ["| torch | " + " | ".join(f"`{room}`" for room in ROOMS) + " |"]
    lines.append("|---" * (len(ROOMS) + 1) + "|")
    for version in VERSIONS:
        found = [cells.get((version, room), "not run") for room in ROOMS]
        lines.append(f"| {version} | " + " | ".join(found) + " |")
    return "\n".join(lines)


def _cell(row: Row) -> str:
    parts = [f"{int(row['passed']):,} passed"]
    if row["failed"] != "0":
        parts.append(f"**{row['failed']} failed**")
    parts += [f"{row[name]} {name}" for name in ("refused", "skipped") if row[name] != "0"]
    return ", ".join(parts)


def run(versions: Sequence[str], rooms: Sequence[str], processes: int) -> int:
    """Run the rooms on each version, keep each result at once, and return how many tests failed."""
    failed = 0
    for version in versions:
        wanted = (f"torch=={version}", "--editable", ".[tensor]", "--group", "test")
        newest = ("--upgrade", "pip>=25.1")
        python = install(ENVIRONMENTS / version, newest, ("--no-cache-dir", *wanted))
        for room in rooms:
            started = time.monotonic()
            counts = run_room(python, room, processes)
            failed += counts["failed"]
            row = {"torch": version, "room": room, **{k: str(n) for k, n in counts.items()}}
            row["seconds"] = f"{time.monotonic() - started:.0f}"
            others = [it for it in read() if (it["torch"], it["room"]) != (version, room)]
            write([*others, row])
            print(f"torch {version}, {room}: {_cell(row)} in {row['seconds']} s", flush=True)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=", ".join(VERSIONS))
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=ROOMS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    unknown = set(options.versions) - set(VERSIONS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))} is not one of {', '.join(VERSIONS)}")
    failed = 0
    if not options.check:
        failed = run(options.versions or VERSIONS, options.rooms, options.processes)
    check_or_write(PAGE, {"matrix": table(read())}, check=options.check, command=COMMAND)
    if failed:
        raise SystemExit(f"{failed} tests failed")


if __name__ == "__main__":
    main()
