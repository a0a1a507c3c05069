"""``pullback check``: find the Functions, check each, show and write what was found."""

import signal
import time
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.markup import escape

from pullback.cli._files import KEPT, write_file
from pullback.cli._inside import answered, checked_inside
from pullback.cli._options import CheckOptions
from pullback.cli._outputs import Results, aside, show, write_outputs
from pullback.cli._progress import working
from pullback.cli._record import Ran, keep, say_recorded
from pullback.cli._run import run_tasks
from pullback.cli._signals import ended_by, note, stopping_gently
from pullback.cli._targets import function_task, package_tasks, shipped_tasks
from pullback.cli._tasks import TRAINING, Outcome, Task, tasks_of_recording, training_outcome
from pullback.cli._words import is_recording, say
from pullback.conformance import CLAUSES, select_clauses
from pullback.errors import ArgumentError, ProgramError
from pullback.internal._processes import STOP, Stopped
from pullback.recording import Recording
from pullback.report import Baseline, make_console

__all__ = ["refuse", "run_check"]

_BROKEN, _UNCHECKED, _SIGNALLED = 1, 3, 128
_SHOWN = 10  # modules that cannot be imported
_INTERRUPTED = "The program was interrupted; what it applied until then is checked."


def refuse(options: CheckOptions) -> Baseline | None:
    """Refuse, before anything is run, clauses and a baseline that are none; gives the baseline.

    Raises:
        ArgumentError: it says which there are.
    """
    select_clauses(options.clauses, options.without or ())
    if options.baseline is None:
        return None
    return Baseline.read(options.baseline, [*(one.id for one in CLAUSES), *TRAINING])


def run_check(options: CheckOptions, ran: Ran | None) -> int:
    """Check what the options name.

    Returns:
        0 if all was checked and nothing is broken, 1 if something is broken or crashes, 3 if
        something could not be checked, or is broken with guessed inputs alone; 128 and the number
        of the signal if it was interrupted.

    Raises:
        PullbackError: what was asked for cannot be done; nothing is checked then.
    """
    baseline = refuse(options)
    # With the JSON on stdout, everything for people goes to stderr.
    console = make_console(stderr=options.json == "-")
    with stopping_gently(), aside(when=options.json == "-"):
        results = _results(options, ran, console)
    if baseline is not None:
        accepted = [_accepted(outcome, baseline) for outcome in results.outcomes]
        results = replace(results, outcomes=accepted)
    show(results, console, verbose=options.verbose)
    write_outputs(options, results, console)
    if baseline is not None and not results.partial:
        _keep_baseline(baseline, results, options, console)
    return _status(results, options)


def _results(options: CheckOptions, ran: Ran | None, console: Console) -> Results:
    """What was checked, what could not be looked into, and how many seconds the checks took."""
    known: list[Outcome] = []
    problems: list[str] = []
    try:
        if ran is not None:
            tasks, known = _program_tasks(options, ran, console)
        else:
            tasks, problems = _find_tasks(options, console)
    except Stopped:
        return Results([], 0.0, partial=_partial([]))
    started = time.perf_counter()
    there = sum(item.report.seconds for item in known if item.report is not None)
    outcomes = known
    if tasks or not (known or ended_by()):
        outcomes = [*known, *_run(tasks, problems, options, console)]
    # By the clock: two may be checked at a time.
    seconds = there + time.perf_counter() - started
    return Results(outcomes, seconds, problems, _partial(outcomes))


def _run(
    tasks: Sequence[Task],
    problems: Sequence[str],
    options: CheckOptions,
    console: Console,
) -> list[Outcome]:
    chosen = [task for task in tasks if options.only is None or options.only in task.name]
    if not chosen and problems and not tasks:
        raise ArgumentError(
            "No Function was found, and not every module could be imported.",
            given="\n".join(["", *(f"    {line}" for line in problems[:_SHOWN])]),
            expected="modules that can be imported",
            mend="Install what is missing, or name a module that needs none of it.",
        )
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
        **options.how,
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
        return _INTERRUPTED if ended_by() else ""
    whole = sum(item.report is not None and not item.report.unfinished for item in outcomes)
    return f"Interrupted: {whole} of {len(outcomes)} Functions were checked whole."


def _accepted(outcome: Outcome, baseline: Baseline) -> Outcome:
    if outcome.report is not None:
        outcome = replace(outcome, report=baseline.accept(outcome.report))
    return replace(outcome, accepted=baseline.accepts_unchecked(outcome.name))


def _keep_baseline(
    baseline: Baseline, results: Results, options: CheckOptions, console: Console
) -> None:
    """Name what is stale, or write the baseline anew."""
    reports = [report for _, report in results.checked]
    unchecked = [outcome.name for outcome in results.outcomes if outcome.unchecked]
    if options.update_baseline:
        fresh = baseline.updated(reports, unchecked)
        write_file(baseline.path, fresh.render())
        console.print(
            f"Wrote {baseline.path}: {len(fresh.reasons)} listed; give each its reason: "
            f"{len(fresh.without_reason)} are not looked into yet, and accept nothing.",
            markup=False, soft_wrap=True,
        )  # fmt: skip
        return
    # With some of the clauses, or at other inputs, nothing is known of what was not looked at.
    stale = "was not found any more; take it out."
    empty = "is not looked into yet; give it a reason, or mend it."
    lines = [("no reason", entry, empty) for entry in baseline.without_reason]
    lines += [("stale", entry, stale) for entry in baseline.stale(reports, unchecked)]
    for word, entry, said in lines:
        place = escape(f"in {baseline.path}: {entry}")
        console.print(f"[yellow]{word}[/] {place} {said}", soft_wrap=True)


def _status(results: Results, options: CheckOptions) -> int:
    if STOP.is_set() or ended_by():
        return _SIGNALLED + ended_by()
    if options.update_baseline:
        return 0
    bad = [report for _, report in results.checked if not report.ok]
    if bad:  # what guessed inputs show may be outside of what the Function is made for
        return _UNCHECKED if all(report.guessed for report in bad) else _BROKEN
    unchecked = any(item.unchecked and not item.accepted for item in results.outcomes)
    unchecked = unchecked or bool(results.problems)
    return _UNCHECKED if unchecked and not options.allow_unchecked else 0


def _find_tasks(options: CheckOptions, console: Console) -> tuple[list[Task], list[str]]:
    if not options.targets:
        return shipped_tasks(), []
    timeout = options.how["timeout"]
    tasks: list[Task] = []
    problems: list[str] = []
    for word in options.targets:
        if ":" in word and not is_recording(word):
            with working(f"Looking for {word} and inputs that fit it", console):
                tasks.append(function_task(word, options.inputs, timeout))
        elif is_recording(word):
            recording = Recording.load(word, scripts=options.scripts, trust=options.trust)
            tasks.extend(tasks_of_recording(recording, word))
        else:
            with working(f"Looking for the Functions of {word}", console):
                found, faults = package_tasks(word, timeout)
            tasks.extend(found)
            problems.extend(faults)
    return tasks, problems


def _program_tasks(
    options: CheckOptions, ran: Ran, console: Console
) -> tuple[list[Task], list[Outcome]]:
    """The Functions that a program applied, and what is known of it already."""
    if options.inside:
        return [], checked_inside(options, ran)
    path = options.output or KEPT
    recording, failure = ran
    interrupted = failure is not None and failure.interrupted
    known = training_outcome(recording.training, options.program or [], options.run_again)
    if len(recording) or not (interrupted or (known and failure is None)):
        try:
            keep(recording, path, None if interrupted else failure)
        except ProgramError as error:
            if not STOP.is_set():
                raise
            say(str(error))  # and what is known is written, as asked for
    if interrupted:
        note(signal.SIGINT)
        console.print(f"[bold yellow]{_INTERRUPTED}[/]")
    say_recorded(recording, console)
    tasks = tasks_of_recording(recording, str(path))
    # What no recording could hold has been checked where it ran.
    told = {name for name, answer in recording.answers.items() if answer["report"]}
    known += answered(recording, sorted(told), options)
    return [task for task in tasks if task.name not in told], known
