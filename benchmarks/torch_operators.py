"""`python -m benchmarks.torch_operators [--part A:B] [--check]`: torch's own, under transforms.

Each operator that torch's own tests list (`op_db`) is checked at its first two samples in float64,
called as torch's own gradient tests call it: a matrix that must be symmetric is made so. Verdicts
go into benchmarks/results/torch_operators.csv, and the table of those that are silently wrong into
docs/torch-operators.md. `--part` checks the operators from A to B alone, and keeps the other rows;
`--check` says whether the table is that of the CSV.
"""

import argparse
import signal
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.markers import check_or_write
from benchmarks.rows import Row, read_rows, write_rows
from pullback import check

__all__ = ["read", "table"]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "torch_operators.csv"
PAGE = ROOT / "docs" / "torch-operators.md"
COMMAND = "python -m benchmarks.torch_operators"
FIELDS = ["operator", "clause", "verdict", "detail", "expected", "got"]
CLAUSES = ("derivative", "double", "forward", "forward-over-forward", "transforms", "vmap")
SAMPLES, SECONDS = 2, 60
VERSION = "2.13.0"  # of torch, which the rows are of
LEFT_OUT = {
    "nn.functional.multi_head_attention_forward": "its second derivatives are what rounding leaves",
    "as_strided": "reads memory, not entries",
    "as_strided.partial_views": "reads memory, not entries",
    "as_strided_copy": "reads memory, not entries",
    "as_strided_scatter": "writes memory, not entries",
    "nn.functional.max_unpool1d": "its samples write to one place twice",
    "nn.functional.max_unpool2d": "its samples write to one place twice",
    "nn.functional.max_unpool3d": "its samples write to one place twice",
    "normal": "torch gives what numbers are drawn around no gradient",
    "normal.number_mean": "torch gives what numbers are drawn around no gradient",
}


class TooLong(BaseException):
    """An operator takes longer than its time."""


def operators() -> list[Any]:
    """Those of torch's table that autograd knows, in its order."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [each for each in op_db if torch.float64 in each.dtypes and each.supports_autograd]


def name_of(operator: Any) -> str:
    more = operator.variant_test_name
    return f"{operator.name}.{more}" if more else operator.name


def calls(operator: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Functions of tensors, with their arguments: those of the first samples that can be called."""
    samples = operator.sample_inputs("cpu", torch.float64, requires_grad=True)
    found = 0
    for sample in samples:
        if found == SAMPLES:
            return
        if not isinstance(sample.input, torch.Tensor) or sample.input.numel() < 2:
            continue

        def call(*tensors: Any, sample: Any = sample) -> Any:
            return operator.gradcheck_wrapper(operator.op, *tensors, **sample.kwargs)

        given = (sample.input, *sample.args)
        try:
            call(*given)
        except Exception:  # a sample for another way to call it
            continue
        found += 1
        yield call, given


def rows_of(operator: Any) -> list[Row]:
    """One row for each clause: the worst of the samples."""
    worst: dict[str, Row] = {}
    order = ("broken", "crashes", "lacking", "untidy", "holds", "skipped")
    for call, given in calls(operator):
        for finding in check(call, *given, clauses=CLAUSES):
            verdict = str(finding.verdict)
            known = worst.get(finding.clause)
            if known is None or order.index(verdict) < order.index(known["verdict"]):
                bad = verdict not in ("holds", "skipped")
                said = [finding.detail, finding.expected, finding.got] if bad else [""] * 3
                detail, expected, got = (textwrap.shorten(text, 160) for text in said)
                worst[finding.clause] = {
                    "operator": name_of(operator), "clause": finding.clause, "verdict": verdict,
                    "detail": detail, "expected": expected, "got": got,
                }  # fmt: skip
    return list(worst.values())


def within_time(operator: Any) -> list[Row]:
    """The rows of an operator, or one that says why there are none."""

    def end(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    try:
        return rows_of(operator)
    except TooLong:
        why = f"takes longer than {SECONDS} s"
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return [dict.fromkeys(FIELDS, "") | {
        "operator": name_of(operator), "clause": "all", "verdict": "not checked",
        "detail": textwrap.shorten(why, 160),
    }]  # fmt: skip


def read() -> list[Row]:
    """The rows of the CSV: one for each operator and clause."""
    return read_rows(RESULTS)


def table(rows: list[Row]) -> str:
    """What is silently wrong, and how many operators were asked."""
    checked = {row["operator"] for row in rows if row["clause"] != "all"} - set(LEFT_OUT)
    wrong = [row for row in rows if row["verdict"] == "broken" and row["operator"] in checked]
    lines = [
        f"{len(checked)} operators of torch {VERSION} were asked; "
        f"{len({row['operator'] for row in wrong})} of them answer silently wrong:", "",
        "| operator | clause | what it says | expected | got |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for row in wrong:
        cells = (row[field].replace("|", r"\|") for field in ("detail", "expected", "got"))
        lines.append(f"| `{row['operator']}` | `{row['clause']}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default=":", help="the operators from A to B, as A:B")
    parser.add_argument("--check", action="store_true", help="end with 1 when out of date")
    options = parser.parse_args()
    if not options.check:
        if not torch.__version__.startswith(VERSION):
            raise SystemExit(f"The rows are of torch {VERSION}, and this is {torch.__version__}.")
        warnings.simplefilter("ignore")
        first, last = (int(each) if each else None for each in options.part.split(":"))
        every = operators()
        known: dict[str, list[Row]] = {}
        for row in read() if RESULTS.exists() else []:
            known.setdefault(row["operator"], []).append(row)
        for operator in every[first:last]:
            known[name_of(operator)] = within_time(operator)
            rows = [row for each in every for row in known.get(name_of(each), [])]
            write_rows(RESULTS, FIELDS, rows)
    check_or_write(PAGE, {"operators": table(read())}, options.check, COMMAND)


if __name__ == "__main__":
    main()
