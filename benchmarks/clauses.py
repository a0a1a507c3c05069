"""`python -m benchmarks.clauses [--check]`: docs/clauses.md, from the data of the clauses.

Each clause says its promise, why it matters, how a breach shows and how it is mended beside its
test; the page is written from there. `--check` says whether it is what they say.
"""

import argparse
import textwrap
from pathlib import Path

from benchmarks.markers import check_or_write
from pullback.conformance import CLAUSES, Clause
from pullback.report import SIGNS

__all__ = ["sections", "verdicts"]

PAGE = Path(__file__).parents[1] / "docs" / "clauses.md"
WIDTH = 100


def verdicts() -> str:
    """The table of verdicts in Markdown, the best first."""
    lines = ["| verdict | meaning | report |", "|---|---|---|"]
    for verdict, sign in reversed(SIGNS.items()):
        lines.append(
            f"| `{verdict.value}` | {sign.meaning} | {'not ok' if verdict.is_bad else 'ok'} |"
        )
    return "\n".join(lines)


def sections() -> str:
    """A table of the clauses and a section for each, in Markdown."""
    table = ["| clause | promise |", "|---|---|"]
    table += [f"| [`{clause.id}`](#{clause.id}) | {clause.promise} |" for clause in CLAUSES]
    return "\n\n".join(["\n".join(table), *(section(clause) for clause in CLAUSES)])


def section(clause: Clause) -> str:
    """One clause: promise, why, how a breach shows, mend."""
    parts = {
        "Promise.": clause.promise,
        "Why.": clause.why,
        "A breach shows": clause.breach,
        "Mend.": clause.mend,
    }
    texts = [wrapped(f"**{name}** {text}") for name, text in parts.items()]
    return "\n".join([f"## {clause.id}", "", *texts])


def wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="end with 1 when out of date")
    options = parser.parse_args()
    parts = {"verdicts": verdicts(), "clauses": sections()}
    check_or_write(PAGE, parts, options.check, "make readme")


if __name__ == "__main__":
    main()
