"""`python -m benchmarks.wild.checks`: what `pullback check` finds in published Functions.

Runs the command of every case that has one, as a reader would type it, and writes
benchmarks/results/wild_check.csv. Run it in `.benchmark-venv`. `--only entmax,roma` checks those
packages alone and leaves the other rows as they are.
"""

import argparse
import importlib
import importlib.metadata
import json
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.rows import read_rows, write_rows
from benchmarks.wild.__main__ import package_of
from benchmarks.wild._case import Published

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "wild_check.csv"
COLUMNS = ["package", "version", "function", "clause", "verdict", "detail", "lacking", "command"]
SECONDS = 600


def check(stem: str, case: Published) -> list[dict[str, str]]:
    """Run the command and return one row for each broken clause, or one without a clause."""
    package = importlib.import_module(f"benchmarks.wild.cases_{stem}").PACKAGE
    command = ["pullback", "check", case.name, "--input", case.command]
    if case.gradient:
        command += ["--gradient", case.gradient]
    if "lambda" in case.command:  # it cannot be handed to another process
        command.append("--no-isolate")
    limit = [] if "--no-isolate" in command else ["--timeout", str(SECONDS)]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        program = Path(sys.executable).with_name("pullback")
        done = subprocess.run(
            [str(program), *command[1:], *limit, "--json", str(answer)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in (0, 1):  # 3: it was not checked, or not whole
            raise SystemExit(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
        findings = json.loads(answer.read_text())["functions"][0]["findings"]
    common = {
        "package": package,
        "version": importlib.metadata.version(package),
        "function": case.name,
        "lacking": " ".join(item["clause"] for item in findings if item["verdict"] == "lacking"),
        "command": shlex.join(command),
    }
    bad = [item for item in findings if item["verdict"] in ("broken", "crashes")]
    if not bad:
        return [common | {"clause": "", "verdict": "", "detail": ""}]
    return [common | {key: item[key] for key in ("clause", "verdict", "detail")} for item in bad]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="packages by the name of their case file")
    only = set(parser.parse_args().only.split(",")) - {""}
    packages = {package_of(stem) for stem in only}
    tasks = []
    for path in sorted(HERE.glob("cases_*.py")):
        stem = path.stem.removeprefix("cases_")
        if only and stem not in only:
            continue
        module = importlib.import_module(f"benchmarks.wild.cases_{stem}")
        cases = [*module.CASES, *getattr(module, "UNUSABLE", [])]
        tasks += [(stem, case) for case in cases if case.command]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda task: check(*task), tasks))
    rows = [row for answer in answers for row in answer]
    if only:
        rows += [row for row in read_rows(RESULTS) if row["package"] not in packages]
    rows.sort(key=lambda row: (row["package"].lower(), row["function"]))
    write_rows(RESULTS, COLUMNS, rows)
    packages = {row["package"] for row in rows if row["clause"]}
    print(f"{len(tasks)} Functions; something is broken in {len(packages)} packages")


if __name__ == "__main__":
    main()
