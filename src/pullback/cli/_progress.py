"""Say what is being done: a bar on a terminal, and elsewhere a line every ten seconds."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from pullback.cli._tasks import Outcome, Task

__all__ = ["Doing", "with_progress", "working"]

_FIRST, _EVERY = 2.0, 10.0  # seconds
_SHOWN = 2


class Doing:
    """Which clause of which Function runs, and for how long.

    Example:
        >>> doing = Doing()
        >>> doing.start("a:F", "compile")
        >>> str(doing)
        'compile 0 s of a:F'
    """

    def __init__(self) -> None:
        self._running: dict[str, tuple[str, float]] = {}

    def start(self, name: str, what: str) -> None:
        """Note what has just begun."""
        self._running[name] = (what, time.monotonic())

    def end(self, name: str) -> None:
        """Note that nothing of a Function runs any more."""
        self._running.pop(name, None)

    def __str__(self) -> str:
        now = time.monotonic()
        # What runs for longest first: that is what one waits for.
        running = sorted(self._running.copy().items(), key=lambda item: item[1][1])
        parts = [
            f"{what} {now - since:.0f} s of {name}" for name, (what, since) in running[:_SHOWN]
        ]
        more = len(running) - _SHOWN
        return ", ".join(parts) + (f" and {more} more" if more > 0 else "")


def working(what: str, console: Console) -> AbstractContextManager[object]:
    """Show that something takes its time, by a spinner if the console is a terminal."""
    if console.is_interactive:
        return console.status(escape(what))
    return _lines(_EVERY, lambda: what)


def with_progress(
    outcomes: Iterable[Outcome | None], tasks: Sequence[Task], console: Console, doing: Doing
) -> Iterator[Outcome | None]:
    """Hand on the outcomes of tasks, in order as they come, and show how far they are.

    By a bar on a terminal, and by lines on standard error elsewhere.
    """
    columns = (
        TextColumn("Checking"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        # As it is when it is drawn; a long name takes no room from the others.
        TextColumn(
            "{task.fields[doing]}", markup=False,
            table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
        ),
    )  # fmt: skip
    drawn = console.is_interactive
    progress = Progress(*columns, console=console, transient=True, disable=not drawn, expand=True)
    bar = progress.add_task("", total=len(tasks), doing=doing)

    def line() -> str:
        done = progress.tasks[bar].completed
        return f"{done:g} of {len(tasks)} Functions checked, now {doing}"

    with progress, nullcontext() if drawn else _lines(_FIRST, line):
        for outcome in outcomes:
            progress.advance(bar)
            yield outcome


@contextmanager
def _lines(first: float, line: Callable[[], str]) -> Iterator[None]:
    """Write a line on standard error at first and then every so often, for whoever reads a log."""
    started = time.monotonic()
    ended = threading.Event()

    def speak() -> None:
        wait = first
        while not ended.wait(wait):
            wait = _EVERY
            sys.stderr.write(f"pullback: {line()} ({time.monotonic() - started:.0f} s)\n")
            sys.stderr.flush()

    thread = threading.Thread(target=speak, name="pullback-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
