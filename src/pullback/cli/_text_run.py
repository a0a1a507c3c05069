"""Run a program within a `Run`: tell the plan, show what it costs, and say how to resume."""

import shlex
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import pullback
from pullback.errors import ArgumentError, BudgetError, PullbackError, ReplyError
from pullback.internal._as_main import run_as_main
from pullback.internal._secrets import mask_secrets
from pullback.internal._text import clean
from pullback.report import make_console
from pullback.text.lm import Run, scrub
from pullback.text.report import RunSummary, summarise

__all__ = ["print_summary", "run_program"]

INTERRUPTED = 130
FRAMES = 8  # of a traceback, the last ones
_OTHERS = ("<", *{str(Path(pullback.__file__).parent), *sysconfig.get_paths().values()})


def run_program(run: Run, program: Path, arguments: Sequence[str]) -> int:
    """Run a program as ``python program arguments`` would, every model of it within the run.

    Returns:
        0, the program's own exit status, 1 where it failed or met the budget, 130 for Ctrl-C.
    """
    console = make_console(stderr=True)
    with _told(run, console), run:
        _note_program(run, program, arguments)
        _print_start(run, console)
        status = 0
        try:
            _execute(program, arguments)
        except SystemExit as leave:
            status = _status(leave, console)
        except KeyboardInterrupt:
            status = INTERRUPTED
            console.print("[yellow]Interrupted.[/] Waiting for calls under way; "
                          "Ctrl-C again leaves them.")  # fmt: skip
        except PullbackError as error:
            status = 1
            if isinstance(error, ReplyError):  # it would end every run that goes on from here
                run.retire_failures()
            is_met = isinstance(error, BudgetError)  # else the traceback ends with the rest of it
            said = _plain(str(error) if is_met else error.what)
            console.print(f"[red]The run stopped.[/] {said}", soft_wrap=True)
            if not is_met:
                _print_traceback(error, console)
        except Exception as error:
            status = 1
            _print_traceback(error, console)
        try:
            run.wait()
        except KeyboardInterrupt:
            console.print("Left.")
        _print_end(run, status, program, arguments, console)
    return status


def _execute(program: Path, arguments: Sequence[str]) -> None:
    before = sys.argv, [*sys.path]
    try:
        run_as_main([str(program), *arguments])
    finally:
        sys.argv, sys.path[:] = before


def _note_program(run: Run, program: Path, arguments: Sequence[str]) -> None:
    if run.replays:
        return
    known = run.journal.notes().get("program")
    if known and Path(known[0]).name != program.name:
        raise ArgumentError(
            "The journal is that of another program.", given=f"{run.journal.path}: {known[0]}",
            expected=str(program), mend="Choose another journal with -o.",
        )  # fmt: skip
    run.journal.note("program", [str(program.resolve()), *mask_secrets(arguments)])


def _print_start(run: Run, console: Console) -> None:
    path = escape(str(run.journal.path))
    if run.replays:
        console.print(f"Replays {path}: nothing is sent, nothing is paid.")
        return
    if run.before or run.in_doubt:
        spent = summarise([*run.before, *run.in_doubt])
        console.print(f"Resumes {path}: {spent.calls} answers are paid for, {spent.cost}.")
        if run.in_doubt:
            console.print(f"{spent.in_doubt} calls are in doubt: no answer arrived; they are asked "
                          "again under the same Idempotency-Key.")  # fmt: skip
    else:
        console.print(f"Keeps every call in {path}.")
    if run.account is None:
        console.print("Budget: none. Set one with --calls, --tokens, --cost or --seconds.")
    else:
        limits = ", ".join(f"{limit:,} {name}" for name, limit in run.account.limits.items())
        console.print(f"Budget: {limits} in all.")


def _print_end(
    run: Run, status: int, program: Path, arguments: Sequence[str], console: Console
) -> None:
    summary = summarise(run.journal.calls())
    console.print(
        f"{run.paid} calls paid for now, {run.recorded} from the journal; "
        f"in all {summary.calls} calls, {summary.usage.tokens:,} tokens, {summary.cost}."
    )
    if status == 0 or run.replays:
        return
    words = ["pullback", "text", "run", str(program), "-o", str(run.journal.path)]
    words += ["--", *arguments] if arguments else []
    console.print("What was paid for is kept. Resume, with the budget that you want: "
                  f"{escape(shlex.join(words))}", soft_wrap=True)  # fmt: skip


def _status(leave: SystemExit, console: Console) -> int:
    if leave.code is None or isinstance(leave.code, int):
        return leave.code or 0
    console.print(_plain(str(leave.code)))
    return 1


def _print_traceback(error: Exception, console: Console) -> None:
    """Where in the program it happened: the lines of others, ours among them, help nobody there."""
    told = each = traceback.TracebackException.from_exception(error)
    while each is not None:  # of a step that failed the cause says where
        own = [frame for frame in each.stack if not frame.filename.startswith(_OTHERS)]
        # Without a frame of its own the program has not begun: Python cannot read it.
        each.stack = traceback.StackSummary.from_list(own[-FRAMES:]) if own else None  # type: ignore[bad-assignment]
        each = each.__cause__ or each.__context__
    text = "".join(told.format())
    console.print(_plain(text), highlight=False, soft_wrap=True)


def _plain(text: str) -> str:
    """A text that may be of a model, without keys, markup and what a terminal would obey."""
    return escape(clean(scrub(text)))


@contextmanager
def _told(run: Run, console: Console) -> Iterator[None]:
    """Show plans as they come and, on a terminal, what was spent so far."""
    lock = threading.Lock()
    shown = 0
    status = console.status("") if console.is_interactive else None

    def watch(now: Run) -> None:
        nonlocal shown
        with lock:
            for plan in now.described[shown:]:
                console.print(f"Plan: {plan}")
            shown = len(now.described)
        if status is not None:
            status.update(now.describe())

    run.watch = watch
    if status is None:
        yield
        return
    with status:
        yield


def print_summary(summary: RunSummary, console: Console) -> None:
    """Print what each model of a run used, and all together."""
    table = Table(box=None)
    table.add_column("model")
    for name in ("calls", "in doubt", "tokens in", "tokens out", "cost"):
        table.add_column(name, justify="right")
    total = [] if len(summary.models) == 1 else [("all", summary)]
    for name, part in [*((model.model, model) for model in summary.models), *total]:
        usage = part.usage
        cost = f"${usage.cost or 0.0:.6f}" if not part.unpriced else f"{part.unpriced} unknown"
        table.add_row(
            _plain(name), f"{part.calls}", f"{part.in_doubt}", f"{usage.input_tokens:,}",
            f"{usage.output_tokens:,}", cost,
        )  # fmt: skip
    console.print(table)
