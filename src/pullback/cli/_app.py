"""The commands and their options. Nothing heavy is imported until a command runs."""

import sys
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pullback.cli._files import refuse_recording
from pullback.cli._options import (
    CheckOptions,
    Recorded,
    RecordOptions,
    VerifyOptions,
    signature_of,
)
from pullback.cli._text import app as text
from pullback.cli._track import app as track
from pullback.cli._words import refuse_misread
from pullback.errors import ArgumentError
from pullback.internal._extras import require_tensor
from pullback.internal._launch import Limits, launched
from pullback.internal._workers import prepare_worker

if TYPE_CHECKING:
    from pullback.cli._record import Ran

__all__ = ["app"]

T = TypeVar("T")

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


def _command(kind: type[T], name: str, **how: Any) -> Callable[[Callable[[T], int]], None]:
    """Make a command whose options are the fields of a class; it is handed one of that class."""

    def register(run: Callable[[T], int]) -> None:
        def called(**given: Any) -> int:
            return run(kind(**{name: value for name, value in given.items() if value is not None}))

        called.__doc__ = run.__doc__
        called.__signature__ = signature_of(kind)  # type: ignore[attr-defined]  # typer reads it
        app.command(name, **how)(called)

    return register


@_command(CheckOptions, "check")
def _check(options: CheckOptions) -> int:
    """Check Functions against the contract and print the table Function x clause.

    pullback check package.module:Function --input "torch.randn(3, 4), 0.5"

    pullback check package

    pullback check -- python train.py

    pullback check calls.pt --script train.py
    """
    options.refuse_values()
    refuse_misread(options.targets)
    options.refuse_conflicts()
    require_tensor("pullback check")
    load = cache(partial(_load_check, options))
    if options.clauses is not None or options.without or options.baseline:
        load()  # may refuse them
    ran = None
    if options.program is not None:
        ran = _run_program(
            options, load, environment=options.environment, stdout=options.program_output,
            inside="pullback.cli._inside", whole=options.inside,
        )  # fmt: skip
    return load()(options, ran)


def _load_check(options: CheckOptions) -> "Callable[[CheckOptions, Ran | None], int]":
    """Import what checks, and torch, and have workers load what they need before they are asked.

    Raises:
        ArgumentError: there is no such clause, or the baseline is none.
    """
    is_new = "torch" not in sys.modules
    import_module("torch")
    if options.isolate is not False and not options.inside:
        chosen = options.clauses
        named = None if chosen is None else tuple(sorted(chosen.replace(" ", "").split(",")))
        left_out = (options.without or "").replace(" ", "").split(",")
        compiling = "compile" in (named or ("compile",)) and "compile" not in left_out
        prepare_worker("pullback.conformance._worker", compiling, named, as_copy=is_new)
    from pullback.cli._check import refuse, run_check  # takes half a second more

    refuse(options)
    return run_check


def _run_program(options: Recorded, load: Callable[[], object], **how: Any) -> "Ran":
    """Run the program of the options; ``load`` is run meanwhile, since to import torch takes long.

    Raises:
        ProgramError: it does not exist, or its Python started no recorder.
    """
    limits = Limits(**options.kept)
    with launched(options.program or [], limits, eager=options.eager, **how) as program:
        load()
        from pullback.recording import collect

        return collect(program)


@_command(VerifyOptions, "verify")
def _verify(options: VerifyOptions) -> int:
    """Test whether kernels compute what a reference computes, and do nothing else.

    pullback verify kernels:softmax --reference kernels:plain --inputs kernels:make

    pullback verify kernels.py:softmax -r kernels.py:plain -i "torch.randn(4, 8)" --forbid softmax
    """
    options.refuse_files(options.results)
    require_tensor("pullback verify")
    from pullback.cli._verify import run_verify  # imports torch

    return run_verify(options)


@_command(RecordOptions, "record", options_metavar="[OPTIONS] -- PROGRAM [ARGUMENTS]...")
def _record(options: RecordOptions) -> int:
    """Run a program unchanged and keep the calls of custom Functions that it makes.

    pullback record -o calls.pt -- python train.py --lr 0.1
    """
    if options.program is None:
        raise ArgumentError(
            "There is no program to record.",
            expected="a program after --",
            mend="pullback record -o calls.pt -- python train.py",
        )
    require_tensor("pullback record")
    refuse_recording(options.output)
    ran = _run_program(options, lambda: import_module("pullback.cli._record"))
    from pullback.cli._record import run_record

    return run_record(options, ran)


app.add_typer(track, name="track")
app.add_typer(text, name="text")
