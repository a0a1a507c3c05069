"""What a check costs: CPU seconds of each clause, over right specimens and what is shipped.

In one process, with one thread, by every clause but `compile`. CPU time is counted, that of the
copies of the process included; of each clause of each Function the lesser of two checks, the first
of which may compile kernels. What the clauses share stands apart: preparation, the intent, causes
and scripts. `--part N` looks at every N-th specimen alone. `--check` says whether the table of
docs/check.md is that of the CSV.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch

from benchmarks.markers import check_or_write
from benchmarks.rows import read_rows, write_rows
from benchmarks.shipped import shipped_cases
from pullback import check

__all__ = ["read", "table"]

RESULTS = Path(__file__).parent / "results" / "conformance.csv"
PAGE = Path(__file__).parents[1] / "docs" / "check.md"
COMMAND = "python -m benchmarks.bench_conformance"
FIELDS = ["of", "what", "checks", "median", "worst", "function"]
ALL, SHARED = "all", "what they share"

Seconds = dict[str, float]
Row = dict[str, str]


def spent() -> float:
    """The CPU time of this process, and of the copies of it that have ended."""
    copies = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + copies.ru_utime + copies.ru_stime


def seconds(run: Callable[..., object]) -> Seconds:
    """CPU seconds of one check: all, each clause, and what is left over."""
    began: Seconds = {}
    found: Seconds = {}

    def start(clause: str) -> None:
        began[clause] = spent()

    def end(finding) -> None:
        found.setdefault(finding.clause, spent() - began[finding.clause])  # some are told again

    before = spent()
    run(on_start=start, on_finding=end)
    whole = spent() - before
    return {ALL: whole, SHARED: whole - sum(found.values()), **found}


def rows_of(name: str, runs: Iterable[tuple[str, Callable[..., object]]]) -> list[Row]:
    """Median and worst of each part, over many Functions."""
    parts: dict[str, Seconds] = {}
    for function, run in runs:
        first, second = seconds(run), seconds(run)
        for part, value in first.items():
            parts.setdefault(part, {})[function] = min(value, second[part])
    return [
        {
            "of": name, "what": part, "checks": str(len(every)),
            "median": f"{statistics.median(every.values()):.4f}",
            "worst": f"{max(every.values()):.3f}", "function": max(every, key=every.__getitem__),
        }
        for part, every in parts.items()
    ]  # fmt: skip


def asked(function, inputs, gradient) -> Callable[..., object]:
    """A check that is still to be told who hears of it."""
    return partial(check, function, *inputs, gradient=gradient, without="compile")


def specimens(part: int) -> Iterable[tuple[str, Callable[..., object]]]:
    """Every N-th right specimen of the tests."""
    from tests.conformance.clauses.test_seeds import RIGHT

    for one in RIGHT[::part]:
        yield one.id, asked(one.function, one.inputs(), one.gradient)


def shipped() -> Iterable[tuple[str, Callable[..., object]]]:
    """Every Function that is shipped."""
    for case in shipped_cases():
        inputs = case.inputs(torch.Generator().manual_seed(0))
        yield case.name, asked(case.function, inputs, case.gradient)


def read() -> list[Row]:
    """The rows as they were measured."""
    return read_rows(RESULTS)


def table(rows: list[Row]) -> str:
    """Each part in Markdown, the dearest first."""
    groups = list(dict.fromkeys(row["of"] for row in rows))
    counts = {row["of"]: row["checks"] for row in rows}
    by_part = {(row["what"], row["of"]): row for row in rows}
    parts = sorted(
        {part for part, _ in by_part},
        key=lambda part: (-sum(float(by_part[part, it]["median"]) for it in groups), part),
    )
    heads = [f"{group} ({counts[group]}): {it}" for group in groups for it in ("median", "worst")]
    lines = [f"| seconds of CPU time | {' | '.join(heads)} |", "|---|" + "--:|" * len(heads)]
    for part in parts:
        cells = [
            f"{float(by_part[part, group][it]):.{digits}f}"
            for group in groups
            for it, digits in (("median", 3), ("worst", 2))
        ]
        name = part if part in (ALL, SHARED) else f"`{part}`"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="end with 1 when out of date")
    parser.add_argument("--part", type=int, default=1, help="every N-th specimen alone")
    options = parser.parse_args()
    if not options.check:
        torch.set_num_threads(1)
        seconds(asked(torch.sin, [torch.randn(3)], None))  # what is imported once
        rows = rows_of("right specimens", specimens(options.part))
        rows += rows_of("what is shipped", shipped())
        write_rows(RESULTS, FIELDS, rows)
    print(table(read()))
    check_or_write(PAGE, {"seconds": table(read())}, options.check, COMMAND)


if __name__ == "__main__":
    main()
