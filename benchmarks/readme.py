"""`python -m benchmarks.readme [--check]`: the parts of README.md that are measured.

They come from the CSV files of the survey and of the benchmarks. `--check` says whether the page is
that of the CSV files.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.markers import check_or_write
from benchmarks.wild import tables

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FRONT = ROOT / "README.md"
CASES = {
    "split form": "`split form`, apply and backward",
    "combined form": "`combined form`, apply and backward",
    "complete(F)": "`complete(F)`, apply and backward",
    "second derivative": "second derivative",
    "jvp, derived": "forward mode, derived (torch: a jvp by hand)",
}


def found() -> str:
    """What the survey found, in five lines."""
    rows = tables.read(tables.FOUND)
    broken = [row for row in rows if row["verdict"] in ("broken", "crashes")]

    def with_clause(*clauses: str) -> list[str]:
        chosen = [row for row in broken if row["verdict"] == "broken" and row["clause"] in clauses]
        return list(dict.fromkeys(row["function"] for row in chosen))

    def line(clauses: Sequence[str], words: str) -> str:
        functions = with_clause(*clauses)
        names = dict.fromkeys(function.partition(":")[2] for function in functions)
        return f"- {len(functions)} {words}: " + ", ".join(f"`{name}`" for name in names) + "."

    wild = tables.read(tables.WILD)
    before, after = ([row for row in wild if row["state"] == state] for state in tables.STATES)
    shares = "; ".join(
        f"{words} {tables.share(before, column)} → {tables.share(after, column)}"
        for column, words in tables.TRANSFORMS.items()
        if column in ("grad", "forward", "vmap", "hessian")
    )
    packages = len({row["package"] for row in broken})
    return "\n".join(
        [
            f"- {len({row['function'] for row in broken})} of "
            f"{len({row['function'] for row in rows})} Functions checked break the contract "
            f"silently, or crash, in {packages} packages.",
            line(["derivative"], "have a gradient that is not that of their forward"),
            line(["double"], "have a second derivative that is wrong, without an error"),
            line(["dtype", "form"], "return gradients of another dtype or shape than the input's"),
            f"- Of {len(before)} Functions of {len({row['package'] for row in wild})} packages, as "
            f"published → after `complete`: {shares}.",
        ]
    )


def costs() -> str:
    """What a Function of ours costs and how long a check takes, from the benchmarks."""
    with (RESULTS / "tensor.csv").open(newline="", encoding="utf-8") as file:
        forms = list(csv.DictReader(file))
    with (RESULTS / "conformance.csv").open(newline="", encoding="utf-8") as file:
        whole = {row["of"]: row for row in csv.DictReader(file) if row["what"] == "all"}
    shipped = whole["what is shipped"]
    with (RESULTS / "program.csv").open(newline="", encoding="utf-8") as file:
        programs = {row["what"]: float(row["cpu_seconds"]) for row in csv.DictReader(file)}
    with (RESULTS / "recorder.csv").open(newline="", encoding="utf-8") as file:
        seen = next(row for row in csv.DictReader(file) if row["case"].startswith("three tensors"))
    rows = [
        f"| {CASES[row['form']]} | {float(row['torch_us']):.0f} us "
        f"| {float(row['pullback_us']):.0f} us | {float(row['ratio']):.2f} |"
        for row in forms
    ]
    return "\n".join(
        [
            "| | torch's own | pullback | ratio |",
            "|---|---|---|---|",
            *rows,
            "",
            f"A call that is recorded costs {float(seen['added_us']):.1f} us more. A check of one "
            f"Function takes {float(shipped['median']):.2f} s of CPU time without `compile` "
            f"(median of the {shipped['checks']} that are shipped). What a newcomer waits for is "
            "mostly torch: a program with four small "
            f"Functions takes {programs['alone']:.1f} s of CPU time alone, "
            f"{programs['checked']:.1f} s with `pullback check -- python train.py`, and "
            f"{programs['checked without compile']:.1f} s with `--without compile`, spread "
            "over the cores.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="end with 1 when out of date")
    options = parser.parse_args()
    check_or_write(FRONT, {"found": found(), "costs": costs()}, options.check, "make readme")


if __name__ == "__main__":
    main()
