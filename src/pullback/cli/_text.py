"""``pullback text``: run a program that asks models, show what it cost, and replay it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pullback.cli import _words
from pullback.cli._files import write_file
from pullback.errors import ArgumentError

__all__ = ["app"]

app = typer.Typer(
    help="Run a program that asks language models: journaled, within a budget, resumable.",
    no_args_is_help=True,
)

Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


@app.command("run")
def _run(  # noqa: PLR0917 - typer reads the options off the parameters
    program: Annotated[Path, typer.Argument(help="A Python file; its arguments go after --.")],
    journal: Annotated[
        Path, typer.Option("--journal", "-o", help="Keeps every call; resumed if it is there.")
    ] = Path("run.sqlite"),
    calls: Annotated[int | None, typer.Option(help="The most calls in all.")] = None,
    tokens: Annotated[int | None, typer.Option(help="The most tokens in all.")] = None,
    cost: Annotated[float | None, typer.Option(help="The most US dollars in all.")] = None,
    seconds: Annotated[float | None, typer.Option(help="The most seconds of this run.")] = None,
    proposals: Annotated[int | None, typer.Option(help="The most proposals in all.")] = None,
    max_output_tokens: Annotated[
        int | None,
        typer.Option(help="The longest answer, where the program says none; for tokens and cost."),
    ] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds to wait for calls under way at the end.")
    ] = 10.0,
    debug: Debug = False,
) -> int:
    """Run a program; what it pays for is kept, and it can be resumed.

    pullback text run pipeline.py --calls 200 --cost 0.5 --max-output-tokens 1024
    """
    del debug  # read by main before the options are parsed
    from pullback.cli._text_run import run_program
    from pullback.text.lm import Account, Run

    if not program.is_file():
        what = "A program is a file." if program.exists() else "There is no such program."
        raise ArgumentError(what, given=str(program))
    limits: dict[str, Any] = {
        "calls": calls, "tokens": tokens, "cost": cost, "seconds": seconds, "proposals": proposals,
    }  # fmt: skip
    given = {name: limit for name, limit in limits.items() if limit is not None}
    account = Account(**given) if given else None
    run = Run(journal, account=account, max_output_tokens=max_output_tokens, patience=patience)
    return run_program(run, program, _words.program or [])


@app.command("replay")
def _replay(
    journal: Annotated[Path, typer.Argument(help="A journal that `text run` wrote.")],
    program: Annotated[
        Path | None, typer.Option(help="The program, if it is elsewhere now.", show_default=False)
    ] = None,
    debug: Debug = False,
) -> int:
    """Run the program of a journal again from the journal alone: nothing is sent or paid."""
    del debug
    from pullback.cli._text_run import run_program
    from pullback.text.lm import Run

    run = Run(journal, replay=True)
    recorded = run.journal.notes().get("program") or []
    path = program or next(map(Path, recorded), None)
    if path is None or not path.is_file():
        run.journal.close()
        what = "The program of the journal is not there."
        if path is None:
            what = "The journal does not say which program made it."
        raise ArgumentError(what, given=str(path or journal), mend="Pass --program.")
    arguments = recorded[1:] if _words.program is None else _words.program
    return run_program(run, path, arguments)


@app.command("show")
def _show(
    journal: Annotated[Path, typer.Argument(help="A journal that `text run` wrote.")],
    html: Annotated[
        Path | None,
        typer.Option(help="The page.  [default: beside the journal]", show_default=False),
    ] = None,
    debug: Debug = False,
) -> None:
    """Say what a run cost, and write its calls and graphs as one HTML page."""
    del debug
    from pullback.cli._text_run import print_summary
    from pullback.report import make_console
    from pullback.text.lm import Journal
    from pullback.text.report import render_run, summarise

    with Journal(journal, read_only=True) as opened:
        page = html or journal.with_suffix(".html")
        write_file(page, render_run(opened))
        print_summary(summarise(opened.calls()), make_console())
    typer.echo(f"page: {page}")
