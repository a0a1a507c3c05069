"""Say what is being done: a bar on a terminal, and elsewhere a line every ten seconds."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pullback.cli._tasks import Outcome, Task

__all__ = ["Doing", "with_progress", "working"]

_EVERY = 10.0  # seconds


class Doing:
    """What the workers are at: the newest of it is shown."""

    def __init__(self) -> None:
        self.text = ""
        self.show: Callable[[str], None] = lambda text: None

    def say(self, text: str) -> None:
        """Note what has just begun or been found."""
        self.text = text
        self.show(text)


@contextmanager
def working(what: str, console: Console) -> Iterator[None]:
    """Show that something takes its time.

    Arguments:
        what: what is done, for example ``"Looking for the Functions of numpy"``.
        console: a spinner turns there, if it is a terminal.
    """
    if console.is_terminal:
        with console.status(escape(what)):
            yield
        return
    with _line_every(_EVERY, lambda: what):
        yield


def with_progress(
    outcomes: Iterable[Outcome | None], tasks: Sequence[Task], console: Console, doing: Doing
) -> Iterator[Outcome | None]:
    """Hand on the outcomes and show how far they are.

    Arguments:
        outcomes: the outcomes of the tasks, in order, as they come.
        tasks: all tasks.
        console: where the bar goes, if it is a terminal; lines go to standard error.
        doing: what the workers are at.
    """
    if console.is_terminal:
        yield from _with_bar(outcomes, tasks, console, doing)
        return
    done = 0

    def line() -> str:
        now = f", now {doing.text}" if doing.text else ""
        return f"{done} of {len(tasks)} Functions checked{now}"

    with _line_every(_EVERY, line):
        for outcome in outcomes:
            done += 1
            yield outcome


def _with_bar(
    outcomes: Iterable[Outcome | None], tasks: Sequence[Task], console: Console, doing: Doing
) -> Iterator[Outcome | None]:
    columns = (
        TextColumn("Checking"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(escape(tasks[0].name), total=len(tasks))
        doing.show = lambda text: progress.update(bar, description=escape(text))
        for outcome in outcomes:
            progress.advance(bar)
            yield outcome


@contextmanager
def _line_every(seconds: float, line: Callable[[], str]) -> Iterator[None]:
    """Write a line on standard error every so often, for whoever reads a log."""
    started = time.monotonic()
    ended = threading.Event()

    def speak() -> None:
        while not ended.wait(seconds):
            sys.stderr.write(f"pullback: {line()} ({time.monotonic() - started:.0f} s)\n")
            sys.stderr.flush()

    thread = threading.Thread(target=speak, name="pullback-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
