"""`python -m benchmarks.programs.tables [--check]`: the tables of docs/programs.md from the CSV."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.markers import check_or_write
from benchmarks.rows import read_rows
from benchmarks.wild.tables import markdown

__all__ = ["read", "rest", "share", "summary", "table"]

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "programs.csv"
PAGE = ROOT / "docs" / "programs.md"
COMMAND = "python -m benchmarks.programs.tables"

Row = dict[str, str]


def read() -> list[Row]:
    """The rows of the CSV file."""
    return read_rows(RESULTS)


def share(rows: Sequence[Row], *answers: str) -> float:
    """The share of Functions that were checked in one of the given ways."""
    return sum(row["checked"] in answers for row in rows) / len(rows)


def summary(rows: Sequence[Row]) -> str:
    """How many of all Functions were recorded and checked."""
    programs = {row["program"] for row in rows}
    packages = {row["package"] for row in rows if row["version"]}
    recorded = sum(row["checked"] == "yes" for row in rows)
    inside = sum(row["checked"] == "inside" for row in rows)
    return (
        f"{len(programs)} programs applied {len(rows)} Functions of {len(packages)} "
        f"package{'' if len(packages) == 1 else 's'}: "
        f"**{recorded} ({100 * share(rows, 'yes'):.0f}%) recorded and checked**, "
        f"{inside} more checked with `--inside` ({100 * share(rows, 'yes', 'inside'):.0f}% in all)."
    )


def table(rows: Sequence[Row]) -> str:
    """Each program: what it applied, and what became of it."""
    body = []
    for program in sorted({row["program"] for row in rows}):
        group = [row for row in rows if row["program"] == program]
        packages = sorted({f"{row['package']} {row['version']}".strip() for row in group})
        body.append([
            f"`{program}`",
            ", ".join(packages),
            str(len(group)),
            str(sum(row["checked"] == "yes" for row in group)),
            str(sum(row["checked"] == "inside" for row in group)),
        ])  # fmt: skip
    return markdown(["program", "whose Functions", "applied", "checked", "inside"], body)


def rest(rows: Sequence[Row]) -> str:
    """What was not recorded and checked, and why."""
    lines = [
        f"- `{row['function']}`"
        + (", checked with `--inside`" if row["checked"] == "inside" else "")
        + f": {row['why']}"
        for row in rows
        if row["checked"] != "yes"
    ]
    return "\n".join(lines) or "Nothing."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="end with 1 when out of date")
    rows = read()
    parts = {"programs": f"{summary(rows)}\n\n{table(rows)}", "rest": rest(rows)}
    check_or_write(PAGE, parts, parser.parse_args().check, COMMAND)


if __name__ == "__main__":
    main()
