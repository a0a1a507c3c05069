"""`python -m benchmarks.wild.tables [--check]`: the tables of docs/survey.md from the CSV files."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.markers import check_or_write
from benchmarks.rows import read_rows

__all__ = ["findings_table", "package_table", "summary_table"]

ROOT = Path(__file__).parents[2]
WILD = ROOT / "benchmarks" / "results" / "wild.csv"
FOUND = ROOT / "benchmarks" / "results" / "wild_check.csv"
PAGE = ROOT / "docs" / "survey.md"
COMMAND = "python -m benchmarks.wild.tables"
TRANSFORMS = {
    "grad": "`torch.func.grad`",
    "forward": "forward mode",
    "vmap": "`vmap`",
    "hessian": "`hessian`",
    "compile": "fullgraph compile",
    "double": "second order, reverse over reverse",
    "first_order": "first order, equal to the last bit",
}
SHORT = {
    "works": "works",
    "refuses": "refuses",
    "torch": "as torch",
    "wrong": "**wrong**",
    "crashes": "**crashes**",
}

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """The rows of a CSV file."""
    return read_rows(path)


def share(rows: Sequence[Row], column: str, verdict: str = "works") -> str:
    """How many rows have the verdict, in percent of all."""
    return f"{100 * sum(row[column] == verdict for row in rows) / len(rows):.0f}%"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def summary_table(rows: Sequence[Row]) -> str:
    """Each transform: how many Functions it works for, as published and completed."""
    states = {state: [row for row in rows if row["state"] == state] for state in STATES}
    number = len(states["published"])
    packages = len({row["package"] for row in rows})
    body = [
        [
            words,
            share(states["published"], column),
            f"**{share(states['completed'], column)}**",
            ", ".join(
                f"{share(states['completed'], column, verdict)} {SHORT[verdict].strip('*')}"
                for verdict in ("refuses", "torch", "wrong", "crashes")
                if any(row[column] == verdict for row in states["completed"])
            ),
        ]
        for column, words in TRANSFORMS.items()
    ]
    title = f"{number} Functions of {packages} packages:"
    header = ["works for", "as published", "after `complete`", "the rest after `complete`"]
    return f"{title}\n\n{markdown(header, body)}"


STATES = ("published", "completed")


def package_table(rows: Sequence[Row]) -> str:
    """Every Function: the transforms as published -> completed."""
    paired: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        key = (f"{row['package']} {row['version']}", row["function"])
        paired.setdefault(key, {})[row["state"]] = row
    body = [
        [
            package,
            f"`{function.partition(':')[2]}`",
            pair["published"]["intent"],
            *(_change(pair, column) for column in TRANSFORMS if column != "first_order"),
        ]
        for (package, function), pair in paired.items()
    ]
    header = ["package", "Function", "backward is", "grad", "forward", "vmap", "hessian",
              "compile", "second order"]  # fmt: skip
    return markdown(header, body)


def _change(pair: dict[str, Row], column: str) -> str:
    before, after = (SHORT[pair[state][column]] for state in STATES)
    return before if before == after else f"{before} → {after}"


def findings_table(rows: Sequence[Row]) -> str:
    """What the checker found, one line for each Function, with its command."""
    by_function: dict[str, list[Row]] = {}
    for row in rows:
        by_function.setdefault(row["function"], []).append(row)
    found = {name: group for name, group in by_function.items() if group[0]["clause"]}
    clean = sorted(name.partition(":")[2] for name in by_function if name not in found)
    body = [
        [
            f"{group[0]['package']} {group[0]['version']}",
            f"`{name.partition(':')[2]}`",
            _say(group),
            f"`{group[0]['command']}`".replace("|", "\\|"),
        ]
        for name, group in found.items()
    ]
    packages = {group[0]["package"] for group in found.values()}
    title = f"{len(found)} of {len(by_function)} Functions checked, in {len(packages)} packages:"
    table = markdown(["package", "Function", "what is broken", "the command"], body)
    rest = ", ".join(f"`{name}`" for name in clean)
    return f"{title}\n\n{table}\n\nNothing silently wrong was found in {rest}."


def _say(group: Sequence[Row]) -> str:
    """What is broken; where nearly everything crashes, the one reason."""
    crashes = [row for row in group if row["verdict"] == "crashes"]
    said = [f"`{row['clause']}`: {row['detail']}" for row in group if row["verdict"] == "broken"]
    if crashes:
        many = "1 clause crashes" if len(crashes) == 1 else f"{len(crashes)} clauses crash"
        said.append(f"{many}: {crashes[0]['detail']}")
    return "<br>".join(said).replace("|", "\\|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="end with 1 when out of date")
    rows = read(WILD)
    parts = {
        "summary": summary_table(rows),
        "functions": package_table(rows),
        "findings": findings_table(read(FOUND)),
    }
    check_or_write(PAGE, parts, parser.parse_args().check, COMMAND)


if __name__ == "__main__":
    main()
