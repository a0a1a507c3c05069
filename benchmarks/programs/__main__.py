"""`python -m benchmarks.programs`: what is recorded and checked of training scripts of others.

Each file in `scripts/` is a short training program as a user of the package would write it. Each is
run from a shell as `pullback check -- python scripts/NAME.py`, and each Function that it applies is
a row of benchmarks/results/programs.csv: whether a call of it was kept, whether it was checked, and
why not. Two clauses are enough to see that, and `--clauses` names others. What is not checked so is
tried again by `--inside`. Run it in `.programs-venv`. `--only entmax,peft` runs the programs whose
names begin so, and leaves the other rows as they are.
"""

import argparse
import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.rows import read_rows, write_rows
from pullback.recording import RecordedFunction, Recording

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "programs.csv"
COLUMNS = [
    "program",
    "package",
    "version",
    "function",
    "applied",
    "kept",
    "checked",
    "found",
    "why",
]
SECONDS = 1500
# A program that a launcher starts; all others are run by python.
LAUNCHED = {"torchrun_two_ranks": "torchrun --standalone --nproc-per-node 2 {script}"}

Row = dict[str, str]


def command(script: Path) -> list[str]:
    """The program's own command line."""
    return shlex.split(LAUNCHED.get(script.stem, "python {script}").format(script=script))


def check(script: Path, more: list[str]) -> list[Row]:
    """Check a program from a shell; one row for each Function that it applied."""
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder) / "calls.pt"
        data = run(script, ["-o", str(calls), *more], Path(folder))
        recording = Recording.load(calls)
        reports = {item["function"]: item for item in data["functions"]}
        reasons = {item["function"]: item["reason"] for item in data["not_checked"]}
        rows = [row(script, item, reports.get(item.name), reasons) for item in recording]
        if any(item["checked"] == "no" for item in rows):
            data = run(script, ["--inside", *more], Path(folder))
            inside = {item["function"] for item in data["functions"] if not item["unfinished"]}
            for item, recorded in zip(rows, recording, strict=True):
                if item["checked"] == "no" and recorded.name in inside:
                    item["checked"] = "inside"
    return rows


def run(script: Path, words: list[str], folder: Path) -> dict[str, Any]:
    """What `pullback check` found, from a shell."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    line = ["pullback", "check", "--json", str(answer), *words, "--", *command(script)]
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        shlex.join(line), shell=True, cwd=folder, env=variables,
        capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    if not answer.exists():
        raise RuntimeError(f"{script.name}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(answer.read_text())


def row(
    script: Path, item: RecordedFunction, report: dict[str, Any] | None, reasons: dict[str, str]
) -> Row:
    """What became of one Function."""
    found, why = "", reasons.get(item.name, "")
    if report is not None:
        why = report["unfinished"]
        bad = [f for f in report["findings"] if f["verdict"] in ("broken", "crashes")]
        found = " ".join(f"{f['clause']}:{f['verdict']}" for f in bad) or "ok"
    package, version = home(script, item)
    return {
        "program": script.stem,
        "package": package,
        "version": version,
        "function": item.name.replace(f"{script.parent}/", ""),
        "applied": str(item.applied),
        "kept": str(len(item.calls)),
        "checked": "yes" if report is not None and not why else "no",
        "found": found,
        "why": " ".join((why or "; ".join(item.reasons)).replace(str(Path.home()), "~").split()),
    }


def home(script: Path, item: RecordedFunction) -> tuple[str, str]:
    """The distribution that defines a Function, and its version; nothing for the script itself."""
    top = item.locator.module.partition(".")[0]
    for name in importlib.metadata.packages_distributions().get(top, []):
        return name, importlib.metadata.version(name)
    return "(the script)", ""


def read() -> list[Row]:
    """The rows as they were measured."""
    return read_rows(RESULTS)


def write(rows: list[Row]) -> None:
    """Write the rows, by program and Function."""
    write_rows(RESULTS, COLUMNS, sorted(rows, key=lambda row: (row["program"], row["function"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="beginnings of names, with commas between")
    parser.add_argument("--clauses", default="derivative,linear", help="with commas between")
    options = parser.parse_args()
    starts = tuple(options.only.split(","))
    scripts = [path for path in sorted(HERE.glob("scripts/*.py")) if path.stem.startswith(starts)]
    more = ["--clauses", options.clauses]
    rows = []
    for script in scripts:
        try:
            found = check(script, more)
        except (RuntimeError, subprocess.TimeoutExpired) as error:  # the others can still be run
            print(error, flush=True)
            continue
        rows += found
        for item in found:
            print(*(item[key] for key in COLUMNS if key not in ("package", "version")), flush=True)
        others = read() if RESULTS.exists() else []
        write([*found, *(item for item in others if item["program"] != script.stem)])
    known = sum(item["checked"] == "yes" for item in rows)
    print(f"{len(scripts)} programs: {known} of {len(rows)} Functions recorded and checked")


if __name__ == "__main__":
    main()
