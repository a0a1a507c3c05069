"""`python -m benchmarks.shipped [reports.json ...] [--check]`: what is shipped, by every clause.

Reads what `pullback check --json reports.json` found of the cases that the rooms offer (entry
points of the group `pullback.cases`), puts it into benchmarks/results/shipped.csv, in the place of
older rows of the same cases, and writes the table of docs/shipped.md. `--check` says whether the
table is that of the CSV and the CSV has every case and every clause.
"""

import argparse
import csv
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from benchmarks.markers import check_or_write

__all__ = ["function_of", "read", "refusals", "shipped_cases", "table"]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "shipped.csv"
PAGE = ROOT / "docs" / "shipped.md"
COLUMNS = ["case", "gradient", "clause", "verdict", "detail"]
BAD = ("broken", "crashes")
SAID = 200  # characters of a detail


def shipped_cases() -> list:
    """Every case of every room of this package, sorted by name."""
    points = entry_points(group="pullback.cases")
    ours = [point for point in points if point.value.startswith("pullback.")]
    return sorted((case for point in ours for case in point.load()()), key=lambda it: it.name)


def read() -> list[dict[str, str]]:
    """The rows of the CSV: one for each case and clause."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(paths: Sequence[Path]) -> None:
    """Put the findings of reports into the CSV."""
    from pullback.report import read_reports

    reports, _, missing = read_reports(paths)
    if missing:
        raise SystemExit(f"not checked: {missing}")
    names = {case.name for case in shipped_cases()}
    fresh = [
        {
            "case": report.function, "gradient": str(report.gradient), "clause": finding.clause,
            "verdict": str(finding.verdict),
            "detail": "" if finding.verdict == "holds" else " ".join(finding.detail.split())[:SAID],
        }
        for report in reports if report.function in names for finding in report
    ]  # fmt: skip
    known = {row["case"] for row in fresh}
    kept = [row for row in read() if row["case"] in names - known]
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted([*kept, *fresh], key=lambda row: row["case"]))  # clauses in order


def function_of(case: str) -> str:
    """The function that a case is of: `room.verb` of `room.verb.variant`."""
    return ".".join(case.split(".")[:2]).partition("[")[0]


def table(rows: Sequence[dict[str, str]]) -> str:
    """Case by case: how many clauses hold, and which do not.

    Raises:
        ValueError: something that is shipped is broken or crashes.
    """
    lines = ["| case | backward is | holds | refused by name | untidy | does not apply |",
             "|---|---|--:|---|---|---|"]  # fmt: skip
    totals: Counter[str] = Counter()
    for name in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == name]
        bad = [row for row in own if row["verdict"] in BAD]
        if bad:
            raise ValueError(f"{name}: {bad[0]['clause']} is {bad[0]['verdict']}")
        found = {
            verdict: [row["clause"] for row in own if row["verdict"] == verdict]
            for verdict in ("holds", "lacking", "untidy", "skipped")
        }
        totals.update({verdict: len(clauses) for verdict, clauses in found.items()})
        cells = [
            " ".join(f"`{clause}`" for clause in found[verdict])
            for verdict in ("lacking", "untidy", "skipped")
        ]
        start = f"| `{name}` | {own[0]['gradient']} | {len(found['holds'])} | "
        lines.append(f"{start}{' | '.join(cells)} |")
    said = (
        f"{len(lines) - 2} cases, {sum(totals.values()):,} verdicts: {totals['holds']:,} hold, "
        f"{totals['skipped']:,} do not apply, {totals['lacking']} refuse by name, "
        f"{totals['untidy']} are untidy, none is broken and none crashes."
    )
    return "\n".join([said, "", *lines])


def refusals(rows: Sequence[dict[str, str]]) -> str:
    """Why: what each function says that refuses a clause."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["verdict"] == "lacking":
            key = (row["clause"], row["detail"].replace("|", r"\|"))
            found.setdefault(key, []).append(function_of(row["case"]))
    lines = ["| clause | said by | what it says |", "|---|---|---|"]
    for (clause, detail), names in found.items():
        said = " ".join(f"`{name}`" for name in dict.fromkeys(names))
        lines.append(f"| `{clause}` | {said} | {detail} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true", help="end with 1 when out of date")
    options = parser.parse_args()
    if options.reports:
        write(options.reports)
    rows = read()
    missing = {case.name for case in shipped_cases()} ^ {row["case"] for row in rows}
    if missing:
        raise SystemExit(f"{RESULTS} is out of date ({sorted(missing)}): run `make readme`")
    parts = {"shipped": table(rows), "refusals": refusals(rows)}
    check_or_write(PAGE, parts, options.check, "make readme")


if __name__ == "__main__":
    main()
