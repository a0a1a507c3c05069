"""The commands and their options. Nothing heavy is imported until a command runs."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pullback.cli import _state
from pullback.cli._options import Options, options_signature
from pullback.cli._text import app as text
from pullback.cli._track import app as track
from pullback.cli._words import refuse_misread
from pullback.errors import ArgumentError
from pullback.internal._extras import require_tensor
from pullback.internal._workers import prepare_worker

__all__ = ["app"]

app = typer.Typer(
    name="pullback",
    help="Check custom differentiable code against its whole contract.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(show: bool) -> None:
    if show:
        from pullback.cli._version import describe_environment  # looks for torch

        typer.echo(describe_environment())
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the environment and exit."
        ),
    ] = False,
) -> None:
    """Check custom differentiable code against its whole contract."""
    del version  # its callback has acted


def _check(**given: Any) -> int:
    """Check Functions against the contract and print the table Function x clause.

    pullback check package.module:Function --input "torch.randn(3, 4), 0.5"

    pullback check package

    pullback check -- python train.py

    pullback check calls.pt --script train.py
    """
    told = {name: value for name, value in given.items() if value is not None}
    options = Options(program=_state.program, **told)
    options.refuse_values()
    refuse_misread(options.targets)
    options.refuse_conflicts()
    require_tensor("pullback check")
    is_new = "torch" not in sys.modules
    from pullback.cli._check import run_check  # imports torch

    if options.isolate is not False:
        _prepare_workers(options, as_copy=is_new)
    return run_check(options)


# typer reads the options off the parameters: those are the fields.
_check.__signature__ = options_signature(Options)  # type: ignore[attr-defined]
app.command("check")(_check)


def _prepare_workers(options: Options, *, as_copy: bool) -> None:
    """Load what a check loads while the program runs, or inputs are looked for."""
    chosen = options.clauses
    named = None if chosen is None else tuple(sorted(chosen.replace(" ", "").split(",")))
    compiling = "compile" in (named or ("compile",)) and "compile" not in (options.without or "")
    prepare_worker("pullback.conformance._worker", compiling, named, as_copy=as_copy)


@app.command("verify")
def _verify(  # noqa: PLR0917 - typer reads the options off the parameters
    kernels: Annotated[
        list[str], typer.Argument(help="package.module:kernel, or script.py:kernel; several.")
    ],
    reference: Annotated[
        str, typer.Option("--reference", "-r", help="module:plain, of plain torch.")
    ],
    inputs: Annotated[
        str,
        typer.Option(
            "--inputs",
            "-i",
            help="module:make, a function that makes positional arguments, or they themselves as "
            "a Python expression; torch and math are known.",
        ),
    ],
    forbid: Annotated[
        list[str] | None,
        typer.Option(
            help="A function or operator that a kernel must not call.", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of every random choice.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds of work for each promise.")] = 60.0,
    isolate: Annotated[
        bool, typer.Option("--isolate/--no-isolate", help="Survive crashes and hangs.")
    ] = True,
    results: Annotated[
        Path | None,
        typer.Option(help="Add each report to this file of JSON lines; go on from what it holds."),
    ] = None,
    json_path: Annotated[
        str | None, typer.Option("--json", help="Write the reports as JSON; - for stdout.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained HTML page.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML.")] = None,
    sarif: Annotated[Path | None, typer.Option(help="Write SARIF, for code scanning.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every finding.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> int:
    """Test whether kernels compute what a reference computes, and do nothing else.

    pullback verify kernels:softmax --reference kernels:plain --inputs kernels:make

    pullback verify kernels.py:softmax -r kernels.py:plain -i "torch.randn(4, 8)" --forbid softmax
    """
    del debug
    options = Options(
        targets=kernels, seed=seed, isolate=isolate, json=json_path, html=html, junit=junit,
        sarif=sarif, verbose=verbose, timeout=timeout if isolate else None,
    )  # fmt: skip
    options.refuse_values()
    require_tensor("pullback verify")
    from pullback.cli._verify import run_verify  # imports torch

    return run_verify(
        kernels, reference, inputs, options,
        forbid=forbid or (), timeout=timeout, results=results,
    )  # fmt: skip


@app.command("record", options_metavar="[OPTIONS] -- PROGRAM [ARGUMENTS]...")
def _record(
    output: Annotated[Path, typer.Option("--output", "-o", help="The recording to write.")] = Path(
        "calls.pt"
    ),
    calls: Annotated[int, typer.Option(min=1, help="Calls kept for each Function.")] = 3,
    max_mebibytes: Annotated[
        float, typer.Option(min=0.001, help="Tensors kept for one call, in MiB.")
    ] = 32.0,
    eager: Annotated[
        bool,
        typer.Option("--eager", help="Run the program without torch.compile, to see inside it."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> int:
    """Run a program unchanged and keep the calls of custom Functions that it makes.

    pullback record -o calls.pt -- python train.py --lr 0.1

    pullback record -o calls.pt -- python train.py
    """
    del debug
    if _state.program is None:
        raise ArgumentError(
            "There is no program to record.",
            expected="a program after --",
            mend="pullback record -o calls.pt -- python train.py",
        )
    require_tensor("pullback record")
    from pullback.cli._record import run_record  # imports torch

    return run_record(_state.program, output, calls, round(max_mebibytes * 2**20), eager=eager)


app.add_typer(track, name="track")
app.add_typer(text, name="text")
