"""Check each task, with a progress bar, and put the reports of its calls together."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pullback.cli._repros import portable
from pullback.cli._tasks import Outcome, Task
from pullback.conformance import Finding, Report, Verdict, check
from pullback.errors import PullbackError

__all__ = ["merge_reports", "run_tasks"]

_WEIGHT = {
    Verdict.BROKEN: 4,
    Verdict.CRASHES: 3,
    Verdict.LACKING: 2,
    Verdict.HOLDS: 1,
    Verdict.SKIPPED: 0,
}


def run_tasks(
    tasks: Sequence[Task],
    console: Console,
    *,
    clauses: Sequence[str] | None = None,
    gradient: str | None = None,
    seed: int = 0,
    timeout: float | None = None,
    isolate: bool | None = None,
) -> list[Outcome]:
    """Check every task.

    Arguments:
        tasks: what to check.
        console: where the progress bar goes; it shows on a terminal only.
        clauses: the clauses to run, or ``None`` for all.
        gradient: the declared intent, or ``None`` for each task's own.
        seed: the seed of every random choice.
        timeout: seconds for one clause, when isolated.
        isolate: whether in processes of their own; ``None`` for each task's own choice.

    Returns:
        One outcome for each task, in order.
    """
    outcomes = []
    for task in _with_progress(tasks, console):
        alone = task.isolated if isolate is None else isolate
        outcome = Outcome(task, reason=task.reason, rerun=task.rerun_line(seed))
        outcomes.append(outcome)
        if task.reason:
            continue
        reports, fault = _check_calls(
            task,
            {"gradient": gradient or task.gradient, "clauses": clauses, "seed": seed},
            {"isolate": alone, "timeout": timeout if alone else None},
        )
        outcome.reason = fault
        if reports:
            outcome.report = replace(merge_reports(reports), function=task.name)
    return outcomes


def _check_calls(task: Task, what: dict[str, Any], how: dict[str, Any]) -> tuple[list[Report], str]:
    """Check a Function at each of its calls; also the reason why the last refused one failed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the imported packages, not of the check
            function, calls = task.load()
    except PullbackError as error:
        return [], _one_line(error)
    reports, fault = [], ""
    for place, args in enumerate(calls):
        try:
            report = check(function, *args, **what, **how)
        except PullbackError as error:
            fault = _one_line(error)
            continue
        number = task.numbers[place] if task.numbers else place
        findings = tuple(portable(finding, task, number) for finding in report)
        reports.append(replace(report, findings=findings))
    return reports, fault


def _one_line(error: PullbackError) -> str:
    return " ".join(part for part in (error.what, error.given) if part)


def merge_reports(reports: Sequence[Report]) -> Report:
    """Put the reports of several calls of one Function together, the worst of each clause.

    Arguments:
        reports: at least one, of the same Function.

    Returns:
        A report whose finding for each clause is the most serious one, naming its call.
    """
    first = reports[0]
    if len(reports) == 1:
        return first
    findings = []
    for clause in dict.fromkeys(item.clause for report in reports for item in report):
        found = [(k, report[clause]) for k, report in enumerate(reports) if clause in report]
        number, worst = max(found, key=lambda pair: _WEIGHT[pair[1].verdict])
        findings.append(_named_call(worst, number, len(reports)))
    return replace(
        first,
        findings=tuple(findings),
        seconds=sum(report.seconds for report in reports),
    )


def _named_call(finding: Finding, number: int, count: int) -> Finding:
    if finding.ok:
        return finding
    return replace(finding, detail=f"{finding.detail} (recorded call {number + 1} of {count})")


def _with_progress(tasks: Sequence[Task], console: Console) -> Iterable[Task]:
    if not console.is_terminal:
        yield from tasks
        return
    columns = (
        TextColumn("Checking"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(tasks))
        for task in tasks:
            progress.update(bar, description=escape(task.name))
            yield task
            progress.advance(bar)
