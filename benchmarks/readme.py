"""`python -m benchmarks.readme [--check]`: the table of README.md, asked of the checker.

Checks every case that the rooms ship (entry points of the group `pullback.cases`) against the
clauses that are transforms, and writes benchmarks/results/transforms.csv and the table. `--check`
says whether the table is that of the CSV and the CSV has every case.
"""

import argparse
import csv
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from benchmarks.markers import check_or_write

__all__ = ["joint", "table"]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "transforms.csv"
PAGE = ROOT / "README.md"
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


if __name__ == "__main__":
    main()
