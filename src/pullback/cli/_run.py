"""Check each task, with a progress bar, and put the reports of its calls together."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from rich.console import Console

from pullback.cli._guessed import guessed_report, paste_inputs
from pullback.cli._progress import Doing, with_progress
from pullback.cli._signals import interrupting
from pullback.cli._tasks import Outcome, Task
from pullback.conformance import check, check_calls
from pullback.errors import PullbackError
from pullback.internal._processes import STOP, count_cores
from pullback.report import Report, Verdict, merge_reports
from pullback.tensor import Intent

__all__ = ["run_tasks", "side_by_side"]

_ELSEWHERE = ("clauses", "without", "ranks")  # options that say nothing of several ranks
_JOB_BYTES = 2**30  # what a check of a Function of some megabytes takes, its compiler included
_GRACE = 4.0  # seconds in which a job that was told to stop says what it knows


def run_tasks(
    tasks: Sequence[Task],
    console: Console,
    *,
    isolate: bool | Literal["copy"] | None = None,
    rerun: Sequence[str] = (),
    gradient: str | None = None,
    timeout: float | None = None,
    **how: Any,
) -> list[Outcome]:
    """Check every task: one outcome for each, in order.

    Without an isolation or an intent each task has its own; ``rerun`` are the options that a check
    of one Function alone needs as well, ``how`` the other options of `pullback.check`.
    """
    doing = Doing()

    def run(task: Task) -> Outcome:
        doing.start(task.name, "starts")
        alone = task.isolated if isolate is None else isolate
        outcome = Outcome(task.name, reason=task.reason, rerun=task.rerun_line(rerun))
        outcome.guessed = paste_inputs(task) if task.guessed else ""
        if not task.reason:
            limits = {"isolate": alone, "timeout": timeout if alone else None}
            intent = gradient or task.gradient
            started = partial(doing.start, task.name)
            options = {**how, **limits, "on_start": started}
            report, outcome.reason = _check_task(task, intent, options)
            if report is not None and task.guessed:
                report = guessed_report(task, report, options)
            if report is not None:  # a broken report is false
                outcome.report = replace(report, function=task.name)
        doing.end(task.name)
        return outcome

    # An isolated check waits for its process; the others share this one.
    alone = all(task.isolated if isolate is None else isolate for task in tasks)
    # Copies are made one at a time: a copy has no thread but the one that made it.
    workers = side_by_side() if alone and isolate != "copy" else 1
    answers = _run_jobs([partial(run, task) for task in tasks], workers)
    outcomes: list[Outcome | None] = []
    with nullcontext() if alone else interrupting(), suppress(KeyboardInterrupt):
        for outcome in with_progress(answers, tasks, console, doing):
            outcomes.append(outcome)  # one by one: what is known stays known
    outcomes += [None] * (len(tasks) - len(outcomes))
    return [
        outcome or Outcome(task.name, reason="interrupted before it was checked")
        for task, outcome in zip(tasks, outcomes, strict=True)
    ]


def _check_task(
    task: Task, gradient: str | None, options: dict[str, Any]
) -> tuple[Report | None, str]:
    """Check a Function at each of its calls; also why there is no report, or an empty text."""
    on_ranks = _check_on_ranks(task, gradient, options)
    if on_ranks is not None:
        return on_ranks, ""
    how = cast(Intent | None, gradient)
    try:
        function, calls = task.load()
        report = check_calls(function, calls, gradient=how, **options)
        lost = _lost(task, report)
        return (None if lost else report), lost
    except PullbackError as error:
        return None, _one_line(error)


def _lost(task: Task, report: Report) -> str:
    """Why a Function that ran in the program cannot be judged alone; an empty text where it can.

    A backward may read what another Function has left in an argument of both, a list for example.
    """
    lost = [finding for finding in report.findings if finding.fails in task.ran]
    return "".join(
        f"its {finding.fails} ran in the program and does not alone, from what was recorded "
        f"({finding.detail.partition(': ')[2]}): it needs what other calls leave it"
        for finding in lost[:1]
    )


def _check_on_ranks(task: Task, gradient: str | None, options: dict[str, Any]) -> Report | None:
    """What is found of a Function with collectives; ``None`` of one that has none.

    One that has some runs on several ranks alone, so that the other clauses do not apply.
    """
    asked = options["clauses"]
    if task.ranks is None or not (asked is None or "distributed" in asked):
        return None
    try:
        function, calls = task.ranks()
        how = {name: value for name, value in options.items() if name not in _ELSEWHERE}
        reports = [
            check(function, gradient=cast(Intent | None, gradient), ranks=ranks, **how)
            for ranks in calls
        ]
    except PullbackError:  # told by the ordinary check, which needs the same
        return None
    reports = [one for one in reports if one["distributed"].verdict is not Verdict.SKIPPED]
    return merge_reports(reports) if reports else None


def _one_line(error: PullbackError) -> str:
    lines = error.mend if "\n" in (error.mend or "") else ""  # to paste
    return " ".join(part for part in (error.what, error.given) if part) + f"\n{lines}".rstrip()


def side_by_side() -> int:
    """How many checks run side by side: one on each core, as far as there is memory for them."""
    return max(1, min(count_cores(), _free_bytes() // _JOB_BYTES))


def _free_bytes() -> int:
    """The memory that is free, of the machine and of the container that this process is in."""
    found = [2**63]
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        [line] = [line for line in lines if line.startswith("MemAvailable:")]
        found.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most, now = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        found.append(most - now)
    return min(found)


def _run_jobs(jobs: Sequence[Callable[[], Any]], workers: int) -> Iterator[Any]:
    """Yield the answer of each job in order.

    ``None`` of one that was not run or has not ended in time. With one worker jobs run in this very
    thread. What a job raises is raised here. Nothing waits for the threads when the command is
    interrupted: those of a `concurrent.futures.ThreadPoolExecutor` are waited for when Python ends.
    """
    if workers < 2:
        for job in jobs:
            yield None if STOP.is_set() else job()
        return
    futures: list[Future[Any]] = [Future() for _ in jobs]
    waiting = deque(zip(futures, jobs, strict=True))

    def work() -> None:
        with suppress(IndexError):  # no more wait
            while not STOP.is_set():
                future, job = waiting.popleft()
                future.set_running_or_notify_cancel()
                try:
                    future.set_result(job())
                except BaseException as error:
                    future.set_exception(error)

    for _ in range(workers):
        threading.Thread(target=work, daemon=True).start()
    for future in futures:
        while not (future.done() or STOP.is_set()):
            wait([future], 0.1)
        if future.running():
            wait([future], _GRACE)
        yield future.result() if future.done() else None
