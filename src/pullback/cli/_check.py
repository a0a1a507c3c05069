"""``pullback check``: find the Functions, check each, show and write what was found."""

import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from pullback.cli._progress import working
from pullback.cli._record import keep, say_recorded
from pullback.cli._run import run_tasks
from pullback.cli._show import show
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
from pullback.recording import Limits, record_program
from pullback.report import make_console, render_json, render_junit, render_page

__all__ = ["Options", "run_check"]

_KEPT = Path(".pullback") / "calls.pt"


@dataclass(frozen=True)
class Options:
    """The options of ``pullback check``, as they were given."""

    targets: tuple[str, ...] = ()
    program: list[str] | None = None
    inputs: str | None = None
    clauses: str | None = None
    gradient: str | None = None
    seed: int = 0
    timeout: float | None = None
    isolate: bool | None = None
    only: str | None = None
    json: str | None = None
    html: Path | None = None
    junit: Path | None = None
    output: Path | None = None
    calls: int = 3
    call_bytes: int = 32 * 2**20
    eager: bool = False
    scripts: tuple[Path, ...] = ()
    trust: bool = False


def run_check(options: Options) -> int:
    """Check what the options name.

    Returns:
        0 if nothing is broken, 1 if something is.

    Raises:
        PullbackError: what was asked for cannot be done; nothing is checked then.
    """
    _refuse_conflicts(options)
    clauses = _clauses(options.clauses)
    # With the JSON on stdout, everything for people goes to stderr.
    console = make_console(stderr=options.json == "-")
    tasks, problems = _find_tasks(options, console)
    if options.only is not None:
        tasks = [task for task in tasks if options.only in task.name]
    if not tasks:
        raise ArgumentError(
            "There is no Function to check.",
            given=f"--only {options.only}" if options.only else _given(options),
            expected="a torch.autograd.Function",
            mend="Name one: pullback check package.module:Function --input ...",
        )
    started = time.perf_counter()
    outcomes = run_tasks(
        tasks,
        console,
        clauses=clauses,
        gradient=options.gradient,
        seed=options.seed,
        timeout=options.timeout,
        isolate=options.isolate,
    )
    seconds = time.perf_counter() - started  # two Functions may be checked at a time
    _refuse_nothing(outcomes)
    show(outcomes, problems, console, seconds)
    _write_files(options, outcomes, problems, console, seconds)
    return 0 if all(outcome.report is None or outcome.report.ok for outcome in outcomes) else 1


def _refuse_nothing(outcomes: list[Outcome]) -> None:
    if any(outcome.report for outcome in outcomes):
        return
    first = outcomes[0]
    raise ArgumentError(
        "No Function could be checked."
        if len(outcomes) > 1
        else f"{first.name} could not be checked.",
        given="; ".join(f"{item.name}: {item.reason}" for item in outcomes[:5]),
        mend='Give inputs: pullback check package.module:Function --input "torch.randn(3, 4)"',
    )


def _write_files(
    options: Options,
    outcomes: list[Outcome],
    problems: list[str],
    console: Console,
    seconds: float,
) -> None:
    reports = [outcome.report for outcome in outcomes if outcome.report is not None]
    missing = [(item.name, item.reason) for item in outcomes if item.report is None]
    reruns = {outcome.name: outcome.rerun for outcome in outcomes}
    if options.json is not None:
        text = render_json(reports, reruns=reruns, not_checked=missing, not_imported=problems)
        if options.json == "-":
            sys.stdout.write(text)
        else:
            _write(Path(options.json), text)
    if options.html is not None:
        page = render_page(
            reports,
            not_checked=missing,
            not_imported=problems,
            command=shlex.join(["pullback", *sys.argv[1:]]),
            reruns=reruns,
            seconds=seconds,
        )
        _write(options.html, page)
        console.print(f"Wrote {options.html}")
    if options.junit is not None:
        _write(options.junit, render_junit(reports, missing))


def _refuse_conflicts(options: Options) -> None:
    if options.program is not None and options.targets:
        raise ArgumentError(
            "A target and a program were both given.",
            given=f"{' '.join(options.targets)} -- {' '.join(options.program)}",
            expected="one of them",
            mend="Check them one after the other.",
        )
    single = len(options.targets) == 1 and ":" in options.targets[0]
    if options.inputs is not None and not single:
        raise ArgumentError(
            "--input goes with one Function.",
            given=_given(options),
            mend='pullback check package.module:Function --input "torch.randn(3, 4)"',
        )
    if options.program is None and (options.output is not None or options.eager):
        raise ArgumentError(
            "--output and --eager go with a program.",
            given=_given(options),
            mend="pullback check -o calls.pt -- python train.py",
        )
    if (options.scripts or options.trust) and not any(map(is_recording, options.targets)):
        raise ArgumentError(
            "--script and --trust go with a recording.",
            given=_given(options),
            mend="pullback check calls.pt --script train.py",
        )
    paths = (options.html, options.junit, Path(options.json) if options.json else None)
    for path in paths:
        if path is not None and str(path) != "-" and not path.parent.is_dir():
            raise ArgumentError(
                f"The folder of {path} does not exist.", mend=f"mkdir -p {path.parent}"
            )
    if options.timeout is not None and options.isolate is False:
        raise ArgumentError(
            "--timeout needs a process of its own for each check.",
            given="--timeout with --no-isolate",
            mend="Leave out one of the two.",
        )


def _given(options: Options) -> str:
    words = [*options.targets, *(["--", *options.program] if options.program else [])]
    return " ".join(words) or "no target"


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
    tasks: list[Task] = []
    problems: list[str] = []
    for word in options.targets:
        if ":" in word and not is_recording(word):
            with working(f"Looking for {word} and inputs that fit it", console):
                tasks.append(function_task(word, options.inputs))
        elif is_recording(word):
            tasks.extend(recording_tasks(word, options.scripts, trust=options.trust))
        else:
            with working(f"Looking for the Functions of {word}", console):
                found, faults = package_tasks(word)
            tasks.extend(found)
            problems.extend(faults)
    return tasks, problems


def _program_tasks(options: Options, console: Console) -> list[Task]:
    limits = Limits(calls=options.calls, call_bytes=options.call_bytes)
    path = options.output or _KEPT
    recording, failure = record_program(options.program or [], limits, eager=options.eager)
    keep(recording, path, failure)
    say_recorded(recording, console)
    return tasks_of_recording(recording, str(path))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(
            f"{path} cannot be written.",
            given=str(error),
            mend="Name a file in a folder that exists.",
        ) from error
