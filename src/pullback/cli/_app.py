"""The commands and their options. Nothing heavy is imported until a command runs."""

from pathlib import Path
from typing import Annotated

import typer

from pullback.cli import _state
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

_INTENTS = ("exact", "surrogate", "nonlinear")


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


@app.command("check")
def _check(  # noqa: PLR0917 - typer reads the options off the parameters
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="package.module:Function, script.py:Function, package, or a recording (calls.pt). "
            "Nothing: what pullback ships. After --: a program to run and record.",
            show_default=False,
        ),
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            help="Positional arguments as a Python expression; torch and math are known.",
        ),
    ] = None,
    clauses: Annotated[
        str | None, typer.Option(help="Only these clauses, separated by commas.")
    ] = None,
    without: Annotated[
        str | None,
        typer.Option(help="Leave these clauses out, for example compile, which takes longest."),
    ] = None,
    thorough: Annotated[
        bool,
        typer.Option("--thorough", help="Compile with inductor and with shapes that change too."),
    ] = False,
    gradient: Annotated[
        str | None, typer.Option(help="The intent: exact, surrogate or nonlinear.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of every random choice.")] = 0,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds of work (CPU time, or sleep) that a Function may take, and the search "
            "for its inputs.  [default: 60]",
            show_default=False,
        ),
    ] = None,
    isolate: Annotated[
        bool | None,
        typer.Option(
            "--isolate/--no-isolate",
            help="Survive crashes and hangs; the default but for what pullback ships.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Only Functions whose name contains this.")
    ] = None,
    json_path: Annotated[
        str | None, typer.Option("--json", help="Write the reports as JSON; - for stdout.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained HTML page.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML.")] = None,
    sarif: Annotated[Path | None, typer.Option(help="Write SARIF, for code scanning.")] = None,
    annotations: Annotated[
        bool, typer.Option("--annotations", help="Print a GitHub annotation for each finding.")
    ] = False,
    baseline: Annotated[
        Path | None, typer.Option(help="Accept the findings that this TOML file lists.")
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Accept what is found now, in that file.")
    ] = False,
    allow_unchecked: Annotated[
        bool,
        typer.Option(
            "--allow-unchecked", help="Exit with 0 also where a Function could not be checked."
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Where the calls of a program are kept.  [default: .pullback/calls.pt]",
            show_default=False,
        ),
    ] = None,
    calls: Annotated[int, typer.Option(min=1, help="Calls kept for each Function.")] = 3,
    max_mebibytes: Annotated[
        float, typer.Option(min=0.001, help="Tensors kept for one call, in MiB.")
    ] = 32.0,
    eager: Annotated[
        bool,
        typer.Option("--eager", help="Run the program without torch.compile, to see inside it."),
    ] = False,
    inside: Annotated[
        bool,
        typer.Option(
            "--inside", help="Check in the program's own process at its end, with its objects."
        ),
    ] = False,
    script: Annotated[
        list[Path] | None,
        typer.Option(
            "--script",
            help="A program of yours: a recording may load what it and its folder define.",
            show_default=False,
        ),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Load whatever a recording names; only for one that you made."
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", help="Print every finding, with a table of entries and its script."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> int:
    """Check Functions against the contract and print the table Function x clause.

    pullback check package.module:Function --input "torch.randn(3, 4), 0.5"

    pullback check package

    pullback check -- python train.py

    pullback check calls.pt --script train.py
    """
    del debug  # read by main before the options are parsed
    _refuse_values(gradient, timeout)
    refuse_misread(targets or ())
    _prepare_check(isolate, without or "")
    from pullback.cli._check import Options, run_check  # imports torch

    return run_check(
        Options(
            targets=tuple(targets or ()),
            program=_state.program,
            inputs=inputs,
            clauses=clauses,
            without=without,
            thorough=thorough,
            gradient=gradient,
            seed=seed,
            timeout=timeout,
            isolate=isolate,
            only=only,
            json=json_path,
            html=html,
            junit=junit,
            sarif=sarif,
            annotations=annotations,
            baseline=baseline,
            update_baseline=update_baseline,
            allow_unchecked=allow_unchecked,
            output=output,
            calls=calls,
            call_bytes=round(max_mebibytes * 2**20),
            eager=eager,
            inside=inside,
            scripts=tuple(script or ()),
            trust=trust,
            verbose=verbose,
        )
    )


def _refuse_values(gradient: str | None, timeout: float | None) -> None:
    if gradient is not None and gradient not in _INTENTS:
        raise ArgumentError(
            "The gradient intent is unknown.", given=gradient, expected=", ".join(_INTENTS)
        )
    if timeout is not None and timeout <= 0:
        raise ArgumentError("The timeout is not positive.", given=f"{timeout:g} s")


def _prepare_check(isolate: bool | None, without: str) -> None:
    require_tensor("pullback check")
    if isolate is not False:
        # Both import torch at the same time.
        prepare_worker("pullback.conformance._worker", "compile" not in without)


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
    _refuse_values(None, timeout)
    require_tensor("pullback verify")
    from pullback.cli._options import Options  # imports torch
    from pullback.cli._verify import run_verify

    options = Options(
        targets=tuple(kernels), seed=seed, isolate=isolate, json=json_path, html=html, junit=junit,
        sarif=sarif, verbose=verbose,
    )  # fmt: skip
    return run_verify(kernels, reference, inputs, options, forbid=forbid or (), timeout=timeout)


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
