"""`python -m benchmarks.verification_table [--check]`: the table of docs/verify.md, as measured."""

import argparse
from pathlib import Path

from benchmarks.markers import check_or_write
from benchmarks.rows import read_rows

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "verification.csv"
PAGE = ROOT / "docs" / "verify.md"
CHECKS = ("allclose", "allclose 1e-2", "KernelBench", "gradcheck", "verify")


def read() -> list[dict[str, str]]:
    """What was measured."""
    return read_rows(RESULTS)


def table(rows: list[dict[str, str]]) -> str:
    """Of each kind of wrong kernel, how many each check catches; then the right ones."""
    lines = [
        "| | kernels | `allclose` | at 1e-2 | KernelBench | `gradcheck` | `verify` |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    wrong = [row for row in rows if row["wrong"] == "yes"]
    right = [row for row in rows if row["wrong"] == "no"]
    lines += [_line(row["kind"].replace("_", " "), [row]) for row in wrong]
    lines.append(_line("**wrong, caught**", wrong))
    lines.append(_line("**right, accused**", right))
    longest = max(float(row["longest"]) for row in rows)
    lines += ["", f"No kernel took more than {longest:g} s of work."]
    return "\n".join(lines)


def _line(name: str, rows: list[dict[str, str]]) -> str:
    total = sum(int(row["kernels"]) for row in rows)
    caught = [str(total - sum(int(row[check]) for row in rows)) for check in CHECKS]
    return f"| {name} | {total} | {' | '.join(caught)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="end with 1 when out of date")
    parts = {"kernels": table(read())}
    check_or_write(PAGE, parts, parser.parse_args().check, "make readme")


if __name__ == "__main__":
    main()
