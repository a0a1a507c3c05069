"""`python -m benchmarks.readme [--check]`: docs/transforms.md, asked of the checker, and README.md.

Checks every case that the rooms ship (entry points of the group `pullback.cases`) against the
clauses that are transforms, and writes benchmarks/results/transforms.csv and the table. The parts
of README.md come from the CSV files of the survey and of the benchmarks. `--check` says whether the
pages are those of the CSV files, and whether the table has every case.
"""

import argparse
import csv
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from statistics import median

from benchmarks.markers import check_or_write
from benchmarks.wild import tables

__all__ = ["joint", "table"]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "transforms.csv"
PAGE = ROOT / "docs" / "transforms.md"
FRONT = ROOT / "README.md"
COLUMNS = {
    "reverse": "reverse",
    "double": "twice reverse",
    "forward": "forward",
    "forward-over-forward": "twice forward",
    "transforms": "`torch.func`",
    "vmap": "`vmap`",
    "compile": "`compile`",
    "autocast": "autocast",
}
# A nonlinear backward skips `linear`, a surrogate `derivative`, a composition `form`.
REVERSE = ("derivative", "linear", "form")
CELLS = {"holds": "✓", "lacking": "refused", "skipped": "·"}


def shipped_cases() -> list:
    """Every case of every room, sorted by name."""
    points = [point for point in entry_points(group="pullback.cases") if is_ours(point.value)]
    return sorted((case for point in points for case in point.load()()), key=lambda it: it.name)


def is_ours(value: str) -> bool:
    """Whether an entry point is one of this package, not of another one that is installed."""
    return value.startswith("pullback.")


def ask() -> list[dict[str, str]]:
    """Check every case and return one row for each."""
    import torch

    from pullback.conformance import check

    rows = []
    for case in shipped_cases():
        arguments = case.inputs(torch.Generator().manual_seed(0))
        asked = [*REVERSE, *(clause for clause in COLUMNS if clause != "reverse")]
        report = check(case.function, *arguments, gradient=case.gradient, clauses=asked)
        verdicts = {clause: str(report[clause].verdict) for clause in asked}
        verdicts["reverse"] = joint([verdicts.pop(clause) for clause in REVERSE])
        rows.append(
            {"case": case.name, "gradient": str(report.gradient)}
            | {clause: verdicts[clause] for clause in COLUMNS}
        )
        print(" ".join(rows[-1].values()), flush=True)
    return rows


def joint(verdicts: Sequence[str]) -> str:
    """The worst of several verdicts; `holds` where one holds and the others do not apply."""
    order = ("broken", "crashes", "lacking", "holds", "skipped")
    return min(verdicts, key=order.index)


def table(rows: Sequence[dict[str, str]]) -> str:
    """The table in Markdown; cases of one function that answer alike share a line.

    Raises:
        ValueError: a verdict is neither holds, lacking nor skipped.
    """
    merged: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        bad = [clause for clause in COLUMNS if row[clause] not in CELLS]
        if bad:
            raise ValueError(f"{row['case']}: {bad[0]} is {row[bad[0]]}")
        function = ".".join(row["case"].split(".")[:2]).partition("[")[0]
        key = (function, row["gradient"], *(CELLS[row[clause]] for clause in COLUMNS))
        merged.setdefault(key, []).append(row["case"])
    header = "| function | backward is | " + " | ".join(COLUMNS.values()) + " |"
    lines = [header, "|---|---|" + ":-:|" * len(COLUMNS)]
    for function, gradient, *cells in merged:
        lines.append(f"| `{function}` | {gradient} | " + " | ".join(cells) + " |")
    return (
        "\n".join(lines) + "\n\n✓ holds · refused: by name, with the mend · a dot: does not apply"
    )


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
    with (RESULTS.parent / "tensor.csv").open(newline="", encoding="utf-8") as file:
        forms = {row["form"]: row for row in csv.DictReader(file)}
    with (RESULTS.parent / "conformance.csv").open(newline="", encoding="utf-8") as file:
        times = [float(row["seconds"]) for row in csv.DictReader(file) if row["kind"] == "function"]
    with (RESULTS.parent / "recorder.csv").open(newline="", encoding="utf-8") as file:
        seen = next(row for row in csv.DictReader(file) if row["case"].startswith("three tensors"))
    rows = [
        f"| `{name}`, apply and backward | {float(forms[name]['torch_us']):.0f} us "
        f"| {float(forms[name]['pullback_us']):.0f} us | {float(forms[name]['ratio']):.2f} |"
        for name in ("split form", "combined form", "complete(F)")
    ]
    first, later = (
        float(forms[f"second derivative, {when} (ms)"]["pullback_us"])
        for when in ("first time", "later")
    )
    return "\n".join(
        [
            "| | torch's own | pullback | ratio |",
            "|---|---|---|---|",
            *rows,
            "",
            f"The first second derivative of a definition is audited: {first:.0f} ms once, then "
            f"{later:.1f} ms. A call that is recorded costs {float(seen['added_us']):.1f} us more. "
            f"One Function takes {median(times):.2f} s (median of {len(times)}) for all clauses "
            "but those that compile; these run last, and take several times as long.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="end with 1 when out of date")
    options = parser.parse_args()
    if not options.check:
        rows = ask()
        with RESULTS.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    with RESULTS.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    missing = {case.name for case in shipped_cases()} ^ {row["case"] for row in rows}
    if missing:
        raise SystemExit(f"{RESULTS} is out of date ({sorted(missing)}): run `make readme`")
    check_or_write(PAGE, {"transforms": table(rows)}, options.check, "make readme")
    check_or_write(FRONT, {"found": found(), "costs": costs()}, options.check, "make readme")


if __name__ == "__main__":
    main()
