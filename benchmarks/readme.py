"""`python -m benchmarks.readme [--check]`: the table of README.md.

Shows what `benchmarks.shipped` has of the clauses that are transforms. `--check` says whether the
table is that of the CSV.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.markers import check_or_write
from benchmarks.shipped import function_of, read

__all__ = ["joint", "table", "transforms"]

ROOT = Path(__file__).parents[1]
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


def transforms(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """One row for each case, with a verdict for each column, from one for each clause."""
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        own = found.setdefault(row["case"], {"case": row["case"], "gradient": row["gradient"]})
        own[row["clause"]] = row["verdict"]
    for own in found.values():
        own["reverse"] = joint([own[clause] for clause in REVERSE])
    return list(found.values())


def joint(verdicts: Sequence[str]) -> str:
    """The worst of several verdicts; `holds` where one holds and the others do not apply."""
    order = ("broken", "crashes", "lacking", "untidy", "holds", "skipped")
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
        key = (
            function_of(row["case"]),
            row["gradient"],
            *(CELLS[row[clause]] for clause in COLUMNS),
        )
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
    check_or_write(PAGE, {"transforms": table(transforms(read()))}, options.check, "make readme")


if __name__ == "__main__":
    main()
