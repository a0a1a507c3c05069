"""One package: each of its Functions, rows on standard output.

A Function is checked in a copy of this process, so that one that dies or hangs costs one answer.
"""

import argparse
import csv
import importlib
import importlib.metadata
import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import pullback
from benchmarks.kernels_in_use.__main__ import COLUMNS, Row, read
from benchmarks.kernels_in_use._count import functions_of
from benchmarks.kernels_in_use._limits import SECONDS, WITHOUT
from benchmarks.wild._case import Published


def plain(case: Published) -> str:
    """Forward and backward, once: what they said where they do not run, or nothing."""
    try:
        arguments = case.inputs(torch.Generator().manual_seed(0))
        answer = (case.call or case.load().apply)(*arguments)
        outputs = answer if isinstance(answer, list | tuple) else [answer]
        roots = [item for item in outputs if isinstance(item, torch.Tensor) and item.requires_grad]
        if not roots:
            return "no output requires a gradient"
        torch.autograd.backward(roots, [torch.ones_like(item) for item in roots])
    except Exception as error:  # whatever it is, it is the reason
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return ""


def examine(case: Published, options: argparse.Namespace) -> list[Row]:
    """Check one Function: a row for each bad finding, or one without a clause."""
    if why := plain(case):
        return [{"ran": "no", "why": why}]
    arguments = case.inputs(torch.Generator().manual_seed(0))
    began = time.monotonic()
    report = pullback.check(
        case.call or case.load(),
        *arguments,
        gradient=case.gradient or None,
        clauses=options.clauses or None,
        without=() if options.clauses else WITHOUT[options.stem],
        isolate="copy",
        timeout=options.seconds,
    )
    common = {"ran": "yes", "why": str(report.unfinished or ""), "gradient": report.gradient or ""}
    common["seconds"] = f"{time.monotonic() - began:.0f}"
    by_verdict: dict[str, list[str]] = {}
    for finding in report.findings:
        by_verdict.setdefault(finding.verdict.value, []).append(finding.clause)
    for verdict in ("lacking", "untidy", "holds"):
        common[verdict] = " ".join(by_verdict.get(verdict, ()))
    if report.unfinished and "derivative" not in {item.clause for item in report.findings}:
        return [{"ran": "no", "why": "its derivative is not checked within its minute"}]
    bad = [item for item in report.findings if item.verdict.value in ("broken", "crashes")]
    if options.text:
        print(report, file=sys.stderr)
    return [
        common | {"clause": item.clause, "verdict": item.verdict.value, "detail": item.detail}
        for item in bad
    ] or [common | {"clause": "", "verdict": "", "detail": ""}]


def reason(name: str, reasons: Sequence[tuple[str, str]]) -> str:
    """Why a Function without a case is not run."""
    return next((why for start, why in reasons if name.startswith(start)), "no inputs written")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stem")
    parser.add_argument("--function", default="", help="ends of names, with commas")
    parser.add_argument("--resume", action="store_true", help="those that did not run alone")
    parser.add_argument("--clauses", default="")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--text", action="store_true", help="the reports, on standard error")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = importlib.import_module(f"benchmarks.kernels_in_use.cases_{options.stem}")
    version = importlib.metadata.version(cases.PACKAGE)
    spec = importlib.util.find_spec(cases.FOLDER)
    names = functions_of(Path(next(iter(spec.submodule_search_locations))))
    by_name = {case.name: case for case in cases.CASES}
    if unknown := set(by_name) - set(names):
        raise SystemExit(f"no such Functions in the package: {sorted(unknown)}")
    ran = {row["function"] for row in read() if row["ran"] == "yes"} if options.resume else set()
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n", restval="")
    for name in names:
        if name in ran or not name.endswith(tuple(options.function.split(","))):
            continue
        if name in by_name:
            rows = examine(by_name[name], options)
        else:
            rows = [{"ran": "no", "why": reason(name, cases.REASONS)}]
        for row in rows:
            sys.stdout.write("row:")
            writer.writerow({"package": cases.PACKAGE, "version": version, "function": name} | row)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
