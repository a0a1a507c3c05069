"""`python -m benchmarks.shipped [reports.json ...] [--check]`: what is shipped, by every clause.

Asks `pullback check` without a target, which checks every case that the rooms offer (entry points
of the group `pullback.cases`), puts each verdict into benchmarks/results/shipped.csv, and writes
the tables of docs/transforms.md. Reports that `pullback check --json` has written already are taken
instead, in the place of older rows of the same cases. `--check` says whether the tables are those
of the CSV, and whether the CSV has every case.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from benchmarks.markers import check_or_write
from benchmarks.rows import read_rows, write_rows

__all__ = ["CELLS", "COLUMNS", "joint", "read", "refusals", "shipped_cases", "summary", "table"]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "shipped.csv"
PAGE = ROOT / "docs" / "transforms.md"
FIELDS = ["case", "gradient", "clause", "verdict", "detail"]
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
BAD = ("broken", "crashes")
SAID = 200  # characters of a detail
TOLD = 120  # on the page

Row = dict[str, str]


def shipped_cases() -> list:
    """Every case of every room of this package, sorted by name."""
    points = entry_points(group="pullback.cases")
    ours = [point for point in points if point.value.startswith("pullback.")]
    return sorted((case for point in ours for case in point.load()()), key=lambda it: it.name)


def read() -> list[Row]:
    """The rows of the CSV: one for each case and clause."""
    return read_rows(RESULTS)


def ask(folder: Path) -> Path:
    """Check all that is shipped, as the command does it; return the report."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "pullback", "check", "--json", str(report)]
    done = subprocess.run(command, cwd=ROOT, check=False)
    if not report.exists():
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return report


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
            "detail": "" if finding.verdict == "holds" else textwrap.shorten(finding.detail, SAID),
        }
        for report in reports if report.function in names for finding in report
    ]  # fmt: skip
    known = {row["case"] for row in fresh}
    kept = [row for row in read() if row["case"] in names - known] if RESULTS.exists() else []
    # Those of one case stay in the order of the clauses.
    write_rows(RESULTS, FIELDS, sorted([*kept, *fresh], key=lambda row: row["case"]))


def function_of(case: str) -> str:
    """The function that a case is of: `room.verb` of `room.verb.variant`."""
    return ".".join(case.split(".")[:2]).partition("[")[0]


def joint(verdicts: Sequence[str]) -> str:
    """The worst of several verdicts; `holds` where one holds and the others do not apply."""
    order = ("broken", "crashes", "lacking", "untidy", "holds", "skipped")
    return min(verdicts, key=order.index)


def table(rows: Sequence[Row]) -> str:
    """Function by transform; functions that answer alike share a line.

    Raises:
        ValueError: a verdict is neither holds, lacking nor skipped.
    """
    merged: dict[tuple[str, ...], dict[str, None]] = {}
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == case]
        verdicts = {row["clause"]: row["verdict"] for row in own}
        verdicts["reverse"] = joint([verdicts[clause] for clause in REVERSE])
        bad = [clause for clause in COLUMNS if verdicts[clause] not in CELLS]
        if bad:
            raise ValueError(f"{case}: {bad[0]} is {verdicts[bad[0]]}")
        cells = [CELLS[verdicts[clause]] for clause in COLUMNS]
        merged.setdefault((own[0]["gradient"], *cells), {})[function_of(case)] = None
    header = "| backward is | " + " | ".join(COLUMNS.values()) + " | functions |"
    lines = [header, "|---|" + ":-:|" * len(COLUMNS) + "---|"]
    lines += [f"| {' | '.join(cells)} | {listed(names)} |" for cells, names in merged.items()]
    return (
        "\n".join(lines) + "\n\n✓ holds · refused: by name, with the mend · a dot: does not apply"
    )


def listed(functions: Iterable[str]) -> str:
    """Functions, each room named once."""
    rooms: dict[str, list[str]] = {}
    for function in functions:
        room, _, name = function.partition(".")
        rooms.setdefault(room, []).append(f"`{name}`")
    return "; ".join(f"{room}: {', '.join(names)}" for room, names in rooms.items())


def summary(rows: Sequence[Row]) -> str:
    """How many verdicts there are of each kind.

    Raises:
        ValueError: something that is shipped is broken or crashes.
    """
    bad = [row for row in rows if row["verdict"] in BAD]
    if bad:
        raise ValueError(f"{bad[0]['case']}: {bad[0]['clause']} is {bad[0]['verdict']}")
    found = Counter(row["verdict"] for row in rows)
    return (
        f"{len({row['case'] for row in rows})} cases of "
        f"{len({function_of(row['case']) for row in rows})} functions, "
        f"{len(rows):,} verdicts: {found['holds']:,} hold, {found['skipped']:,} do not apply, "
        f"{found['lacking']:,} refuse by name, {found['untidy']:,} untidy; none broken, "
        "none crashing."
    )


def refusals(rows: Sequence[Row]) -> str:
    """Why: what each function says that refuses a clause."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        if row["verdict"] in ("lacking", "untidy"):
            # Functions that are refused for one reason share a line: of another name and shape.
            detail = re.sub(r"\b\w+Function\b", "...", row["detail"])
            detail = re.sub(r"\d+, \w+ of shape \([^)]*\)", "k", detail)
            detail = re.sub(r"\s+men(d:.*|\.\.\.)$", "", detail)
            detail = textwrap.shorten(detail, TOLD, placeholder=" ...")
            key = (row["clause"], detail.replace("|", r"\|"))
            found.setdefault(key, {})[function_of(row["case"])] = None
    lines = ["| clause | said by | what it says |", "|---|---|---|"]
    lines += [
        f"| `{clause}` | {listed(names)} | {detail} |"
        for (clause, detail), names in sorted(found.items())
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true", help="end with 1 when out of date")
    options = parser.parse_args()
    if not options.check:
        with tempfile.TemporaryDirectory() as folder:
            write(options.reports or [ask(Path(folder))])
    rows = read()
    missing = {case.name for case in shipped_cases()} ^ {row["case"] for row in rows}
    if missing:
        raise SystemExit(f"{RESULTS} is out of date ({sorted(missing)}): run `make readme`")
    parts = {"transforms": table(rows), "summary": summary(rows), "refusals": refusals(rows)}
    check_or_write(PAGE, parts, options.check, "make readme")


if __name__ == "__main__":
    main()
