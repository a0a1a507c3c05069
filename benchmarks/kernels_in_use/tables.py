"""`python -m benchmarks.kernels_in_use.tables [--check]`: the tables of docs/kernels-in-use.md."""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kernels_in_use.__main__ import HERE, Row, package_of, read
from benchmarks.kernels_in_use._limits import WITHOUT
from benchmarks.kernels_in_use.examined import EXAMINED
from benchmarks.markers import check_or_write
from benchmarks.wild.tables import markdown

__all__ = ["examined", "findings", "missing", "summary"]

PAGE = Path(__file__).parents[2] / "docs" / "kernels-in-use.md"
COMMAND = "python -m benchmarks.kernels_in_use.tables"


def grouped(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each Function."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["package"], row["function"]), []).append(row)
    return groups


def examined(row: Row) -> str:
    """What somebody who looked says of a bad verdict: a page, words, or nothing."""
    for package, ends, clauses, answer in EXAMINED:
        here = row["package"] == package and row["clause"] in clauses
        if here and row["function"].endswith(ends):
            return answer
    return ""


def has_page(answer: str) -> bool:
    """Whether an answer is the name of a page of `reproductions/`."""
    return (PAGE.parents[1] / "reproductions" / f"{answer}.md").exists()


def answer_of(row: Row) -> str:
    """The same, as a cell of a table."""
    answer = examined(row)
    if has_page(answer):
        return f"`reproductions/{answer}.md`"
    return answer or "not yet"


def summary(rows: Sequence[Row]) -> str:
    """Each package: how many Functions it has, how many ran, and what was found."""
    stems = {package_of(path.stem[6:]): path.stem[6:] for path in HERE.glob("cases_*.py")}
    groups = grouped(rows)
    body = []
    for package in sorted({row["package"] for row in rows}, key=str.lower):
        mine = [group for (name, _), group in groups.items() if name == package]
        ran = [group for group in mine if group[0]["ran"] == "yes"]
        bad = [row for group in ran for row in group if row["clause"]]
        pages = {answer for row in bad if has_page(answer := examined(row))}
        body.append([
            package,
            mine[0][0]["version"],
            str(len(mine)),
            str(len(ran)),
            str(sum(not group[0]["clause"] for group in ran)),
            ", ".join(f"{many} `{name}`" for name, many in _counted(bad)) or "-",
            str(len(pages)) if ran else "-",
            ", ".join(f"`{name}`" for name in WITHOUT[stems[package]]) if ran else "-",
        ])  # fmt: skip
    ran = sum(group[0]["ran"] == "yes" for group in groups.values())
    title = f"{len(groups)} Functions of {len(body)} packages; {ran} of them ran and were checked:"
    header = ["package", "version", "Functions", "ran", "nothing bad", "bad verdicts", "pages",
              "clauses left out"]  # fmt: skip
    return f"{title}\n\n{markdown(header, body)}"


def _counted(rows: Sequence[Row]) -> list[tuple[str, int]]:
    return Counter(row["clause"] for row in rows).most_common()


def findings(rows: Sequence[Row]) -> str:
    """Every Function with a bad verdict; each answer of who looked stands once."""
    body = []
    for (package, name), group in grouped(rows).items():
        if not group[0]["clause"]:
            continue
        answers: dict[str, list[str]] = {}
        for row in group:
            word = row["clause"] + ("" if row["verdict"] == "broken" else f" ({row['verdict']})")
            answers.setdefault(answer_of(row), []).append(f"`{word}`")
        looked = "<br>".join(f"{', '.join(it)}: {answer}" for answer, it in answers.items())
        body.append([package, f"`{name.partition(':')[2]}`", looked])
    return markdown(
        ["package", "Function", "what is bad, and what somebody who looked found"], body
    )


def missing(rows: Sequence[Row]) -> str:
    """What did not run, and why: how many Functions for each reason."""
    whys = Counter((row["package"], row["why"]) for row in rows if row["ran"] == "no")
    body = [
        [package, str(many), why.replace("|", "\\|")]
        for (package, why), many in sorted(whys.items())
    ]
    return markdown(["package", "Functions", "why not"], body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="end with 1 when out of date")
    rows = read()
    parts = {"summary": summary(rows), "findings": findings(rows), "missing": missing(rows)}
    check_or_write(PAGE, parts, parser.parse_args().check, COMMAND)


if __name__ == "__main__":
    main()
