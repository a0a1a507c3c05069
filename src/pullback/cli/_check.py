"""``pullback check``: find the Functions, check each, show and write what was found."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from pullback.cli._files import KEPT, write_file
from pullback.cli._inside import check_inside
from pullback.cli._options import TIMEOUT, Options
from pullback.cli._outputs import aside, write_outputs
from pullback.cli._progress import working
from pullback.cli._record import keep, say_recorded
from pullback.cli._run import run_tasks
from pullback.cli._show import show
from pullback.cli._signals import Ended, ended_by, stopping_gently
from pullback.cli._targets import (
    function_task,
    is_recording,
    package_tasks,
    recording_tasks,
    shipped_tasks,
)
from pullback.cli._tasks import Outcome, Task, tasks_of_recording
from pullback.conformance import select_clauses
from pullback.errors import ArgumentError
from pullback.internal._processes import STOP, Stopped
from pullback.recording import record_program
from pullback.report import Baseline, make_console

__all__ = ["Options", "run_check"]

_BROKEN, _UNCHECKED, _SIGNALLED = 1, 3, 128


def run_check(options: Options) -> int:
    """Check what the options name.

    Returns:
        0 if all was checked and nothing is broken, 1 if something is broken or crashes, 3 if
        something could not be checked, or is broken with guessed inputs alone; 128 and the number
        of the signal if it was interrupted.

    Raises:
        PullbackError: what was asked for cannot be done; nothing is checked then.
    """
    options.refuse_conflicts()
    clauses = _clauses(options.clauses)
    baseline = None if options.baseline is None else Baseline.read(options.baseline)
    # With the JSON on stdout, everything for people goes to stderr.
    console = make_console(stderr=options.json == "-")
    with stopping_gently(), aside(when=options.json == "-"):
        outcomes, problems, seconds = _outcomes(options, clauses, console)
    partial = _partial(outcomes)
    if baseline is not None:
        outcomes = [_accepted(outcome, baseline) for outcome in outcomes]
    show(outcomes, problems, console, seconds, partial, verbose=options.verbose)
    _offer_inside(outcomes, options, console)
    write_outputs(options, outcomes, problems, console, seconds=seconds, partial=partial)
    if baseline is not None and not partial:
        _keep_baseline(baseline, outcomes, options, console)
    return _status(outcomes, problems, options)


def _outcomes(
    options: Options, clauses: tuple[str, ...] | None, console: Console
) -> tuple[list[Outcome], list[str], float]:
    """What was checked, what could not be looked into, and how many seconds the checks took."""
    started = time.perf_counter()
    if options.inside:
        return check_inside(options, clauses), [], time.perf_counter() - started
    try:
        tasks, problems = _find_tasks(options, console)
    except Stopped:
        return [], [], 0.0
    started = time.perf_counter()
    outcomes = [] if STOP.is_set() else _run(tasks, options, clauses, console)
    return outcomes, problems, time.perf_counter() - started  # two may be checked at a time


def _run(
    tasks: Sequence[Task],
    options: Options,
    clauses: Sequence[str] | None,
    console: Console,
) -> list[Outcome]:
    chosen = [task for task in tasks if options.only is None or options.only in task.name]
    if not chosen:
        raise ArgumentError(
            "There is no Function to check.",
            given=f"--only {options.only}" if options.only else options.given,
            expected="a torch.autograd.Function",
            mend="Name one: pullback check package.module:Function --input ...",
        )
    outcomes = run_tasks(
        chosen,
        console,
        clauses=clauses,
        gradient=options.gradient,
        seed=options.seed,
        timeout=options.timeout or TIMEOUT,
        isolate=options.isolate,
        rerun=options.rerun,
    )
    first = outcomes[0]
    if options.inputs is not None and first.report is None and not STOP.is_set():
        raise ArgumentError(
            f"{first.name} could not be checked.",
            given=first.reason,
            mend='Give other inputs: --input "torch.randn(3, 4)"',
        )
    return outcomes


def _partial(outcomes: Sequence[Outcome]) -> str:
    if not STOP.is_set():
        return ""
    whole = sum(item.report is not None and not item.report.unfinished for item in outcomes)
    return f"Interrupted: {whole} of {len(outcomes)} Functions were checked whole."


def _accepted(outcome: Outcome, baseline: Baseline) -> Outcome:
    if outcome.report is not None:
        outcome = replace(outcome, report=baseline.accept(outcome.report))
    return replace(outcome, accepted=baseline.accepts_unchecked(outcome.name))


def _offer_inside(outcomes: Sequence[Outcome], options: Options, console: Console) -> None:
    """Say how the objects of a program are had that no recording can hold."""
    missing = [item.name for item in outcomes if item.report is None and not item.accepted]
    if options.program is not None and not options.inside and missing and not STOP.is_set():
        only = ["--only", missing[0]] if len(missing) == 1 else []
        again = shlex.join(["pullback", "check", "--inside", *only, "--", *options.program])
        console.print(
            f"Check in the program's own process, with its objects as they are: {again}",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip


def _keep_baseline(
    baseline: Baseline, outcomes: Sequence[Outcome], options: Options, console: Console
) -> None:
    """Name what is stale, or write the baseline anew."""
    reports = [outcome.report for outcome in outcomes if outcome.report is not None]
    unchecked = [outcome.name for outcome in outcomes if outcome.unchecked]
    if options.update_baseline:
        fresh = baseline.updated(reports, unchecked)
        write_file(baseline.path, fresh.render())
        console.print(
            f"Wrote {baseline.path}: {len(fresh.reasons)} accepted; give each its reason.",
            markup=False,
        )
        return
    # With some of the clauses, or at other inputs, nothing is known of what was not looked at.
    for entry in baseline.stale(reports, unchecked):
        console.print(
            f"[yellow]stale[/] in {baseline.path}: {entry} was not found any more; take it out.",
            soft_wrap=True,
        )


def _status(outcomes: Sequence[Outcome], problems: Sequence[str], options: Options) -> int:
    if STOP.is_set():
        return _SIGNALLED + ended_by()
    if options.update_baseline:
        return 0
    bad = [item.report for item in outcomes if item.report is not None and not item.report.ok]
    if bad:  # what guessed inputs show may be outside of what the Function is made for
        return _UNCHECKED if all(report.guessed for report in bad) else _BROKEN
    unchecked = any(outcome.unchecked and not outcome.accepted for outcome in outcomes)
    return _UNCHECKED if (unchecked or problems) and not options.allow_unchecked else 0


def _clauses(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    chosen = tuple(part.strip() for part in text.split(",") if part.strip())
    if not chosen:
        raise ArgumentError("--clauses names no clause.", given=repr(text))
    select_clauses(chosen)
    return chosen


def _find_tasks(options: Options, console: Console) -> tuple[list[Task], list[str]]:
    if options.program is not None:
        return _program_tasks(options, console), []
    if not options.targets:
        return shipped_tasks(), []
    timeout = options.timeout or TIMEOUT
    tasks: list[Task] = []
    problems: list[str] = []
    for word in options.targets:
        if ":" in word and not is_recording(word):
            with working(f"Looking for {word} and inputs that fit it", console):
                tasks.append(function_task(word, options.inputs, timeout))
        elif is_recording(word):
            tasks.extend(recording_tasks(word, options.scripts, trust=options.trust))
        else:
            with working(f"Looking for the Functions of {word}", console):
                found, faults = package_tasks(word, timeout)
            tasks.extend(found)
            problems.extend(faults)
    return tasks, problems


def _program_tasks(options: Options, console: Console) -> list[Task]:
    path = options.output or KEPT
    recording, failure = record_program(
        options.program or [], options.limits, eager=options.eager, stdout=options.program_output
    )
    keep(recording, path, failure)
    if STOP.is_set():  # we were asked to end, and the program has ended as it would
        raise Ended
    say_recorded(recording, console)
    return tasks_of_recording(recording, str(path))
