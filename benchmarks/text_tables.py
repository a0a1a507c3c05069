"""`python -m benchmarks.text_tables [--check]`: the figures of docs/text.md, as measured."""

import argparse
from pathlib import Path

from benchmarks.markers import check_or_write
from benchmarks.rows import read_rows

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "text.md"


def figures() -> str:
    """Time, memory and feedback beside textgrad."""
    lines = ["| | here | textgrad | ratio |", "|---|--:|--:|--:|"]
    for row in _rows("text.csv"):
        unit = "" if row["unit"] == "ratio" else f" {row['unit']}"
        ours = _span(row["least"], row["most"]) + unit
        theirs = _span(row["textgrad least"], row["textgrad most"])
        theirs += unit if theirs else ""
        lines.append(f"| {row['measure']} | {ours} | {theirs} | {row['ratio']} |")
    return "\n".join(lines)


def searches() -> str:
    """The mean accuracy of what each search ends with, and where it lies with 95 % confidence."""
    rows = _rows("text_search.csv")
    sets = list(dict.fromkeys(row["data"] for row in rows))
    found = {(row["search"], row["data"]): row for row in rows}
    starts = [f"{row['start']}" for row in rows if row["search"] == rows[0]["search"]]
    lines = [f"| | {' | '.join(each.replace('_', ' ') for each in sets)} |", "|---|--:|--:|--:|"]
    lines.append(f"| the start of all | {' | '.join(starts)} |")
    for search in dict.fromkeys(row["search"] for row in rows):
        told = [
            f"{row['mean']} ({_span(row['low'], row['high'])})"
            for row in (found[search, data] for data in sets)
        ]
        lines.append(f"| {search} | {' | '.join(told)} |")
    return "\n".join(lines)


def _rows(name: str) -> list[dict[str, str]]:
    return read_rows(RESULTS / name)


def _span(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="end with 1 when out of date")
    parts = {"figures": figures(), "searches": searches()}
    check_or_write(PAGE, parts, parser.parse_args().check, "make readme")


if __name__ == "__main__":
    main()
