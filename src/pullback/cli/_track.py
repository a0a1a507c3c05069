"""``pullback track -- python train.py`` and ``pullback track diff a.jsonl b.jsonl``."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pullback.cli import _words
from pullback.cli._files import refuse_same
from pullback.cli._signals import end_if_asked
from pullback.cli._words import say
from pullback.errors import ArgumentError
from pullback.internal._arguments import check_counts
from pullback.internal._extras import require_tensor
from pullback.internal._files import refuse_other
from pullback.internal._launch import running
from pullback.internal._secrets import mask_secrets

__all__ = ["app"]

_PROGRAM = "pullback.tracking.watch._program"
# What the first characters of our files hold.
_OUR_PAGE, _OUR_RECORDING = '<meta name="generator" content="pullback track">', '{"kind":"run",'
_OF_OTHERS = (
    "The processes that a program starts, as torchrun and mp.spawn do, are not tracked; use a "
    "pullback.tracking.Tracker in them."
)
_FLAGS_WITH_A_WORD = ("-X", "-W", "--check-hash-based-pycs")


class _ProgramOrCommand(TyperGroup):
    """A group that runs a program where one was given after ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if _words.program is not None and (not args or args[0] not in self.commands):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    help="Track the values and gradients of a program, or compare two recordings.",
    no_args_is_help=True,
    cls=_ProgramOrCommand,
)


@app.command("run", options_metavar="[OPTIONS] -- PROGRAM [ARGUMENTS]...")
def _run(
    every: Annotated[int, typer.Option(help="Measure each so many steps.")] = 1,
    names: Annotated[
        list[str] | None, typer.Option("--name", help="Only modules like this, e.g. 'Net.enc*'.")
    ] = None,
    html: Annotated[Path, typer.Option(help="The report.")] = Path("scales.html"),
    jsonl: Annotated[Path, typer.Option(help="The recording.")] = Path("scales.jsonl"),
    history: Annotated[int, typer.Option(help="How many moments the report shows.")] = 1000,
) -> None:
    """Run a program, as in: -- python train.py --lr 0.1, and write the report of its modules."""
    require_tensor("pullback track")
    from pullback.tracking import diagnose, read_run
    from pullback.tracking.report._html import write_html

    check_counts(every=every, history=history)
    program = _words.program or []
    interpreter, flags, command = _split(program)
    options: dict[str, Any] = {
        "every": every,
        "names": names or [],
        "history": history,
        "jsonl": str(jsonl),
        "title": " ".join(mask_secrets(command))[:80],
    }
    for path, sign in ((html, _OUR_PAGE), (jsonl, _OUR_RECORDING)):
        refuse_other(path, sign)
    refuse_same(html, jsonl)
    replaced = [path for path in (html, jsonl) if path.is_file() and path.stat().st_size]
    before = _stamp(jsonl)
    words = [interpreter, *flags, "-m", _PROGRAM, json.dumps(options), *command]
    with running(words, os.environ) as wait:
        code, _ = wait()
    status = code if code >= 0 else 128 - code
    if _stamp(jsonl) == before:  # it is opened with the first module that is tracked
        end_if_asked()
        _refuse_unrecorded(program, code, names)
        raise typer.Exit(status)
    run = read_run(jsonl)
    write_html(run, html)
    for path in replaced:
        say(f"{path} of an earlier run was written anew; --html and --jsonl name other files.")
    for finding in diagnose(run)[:20]:
        typer.echo(str(finding))
    typer.echo(f"{len(run.series)} tensors in {jsonl}, report in {html}")
    end_if_asked()
    raise typer.Exit(status)


@app.command("diff")
def _diff(
    before: Annotated[Path, typer.Argument(help="A recording.")],
    after: Annotated[Path, typer.Argument(help="Another recording.")],
    threshold: Annotated[
        float, typer.Option(help="How far a scale may move, in octaves (1 is a factor of two).")
    ] = 1.0,
) -> None:
    """Compare two recordings; exit with 1 if the scale of any tensor moved too far."""
    require_tensor("pullback track diff")
    from pullback.tracking import diff, read_run

    changes = diff(read_run(before), read_run(after), threshold)
    for change in changes:
        typer.echo(str(change))
    typer.echo(f"{len(changes)} tensors moved by more than {threshold:g} octaves")
    raise typer.Exit(1 if changes else 0)


def _stamp(path: Path) -> tuple[int, ...] | None:
    """What changes where a file is written anew; nothing of none."""
    if not path.exists():
        return None
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _refuse_unrecorded(program: list[str], code: int, names: list[str] | None) -> None:
    """Say why nothing was recorded of a program; earlier files are as they were.

    Raises:
        ArgumentError: it ended well, and there was nothing to track.
    """
    if code:
        say(
            f"Nothing was recorded of {' '.join(program)} (status {code}): it called no module "
            "until then, or pullback is not installed for its interpreter."
        )
    elif names:
        raise ArgumentError(
            "No module has such a name; nothing was recorded.",
            given=" ".join(f"--name {name!r}" for name in names),
            expected="patterns of names as the report has them, 'Net.encoder*'",
        )
    else:
        raise ArgumentError(
            "Nothing was recorded: the program called no module of torch in its own process.",
            given=" ".join(program),
            mend=_OF_OTHERS,
        )


def _split(program: list[str]) -> tuple[str, list[str], list[str]]:
    """The interpreter, its own options, and what it is to run."""
    is_script = bool(program) and program[0].endswith(".py")
    first, *rest = [sys.executable, *program] if is_script else program or [""]
    if not (is_script or Path(first).name.startswith("python")):
        raise ArgumentError(
            "Only Python programs can be tracked.",
            given=" ".join(program) or "no program",
            expected="python SCRIPT ..., python -m MODULE ... or SCRIPT.py ... after --",
            mend=_OF_OTHERS,
        )
    # What is installed beside this Python comes first, as if its environment were activated.
    found = shutil.which(first, path=str(Path(sys.executable).parent)) or shutil.which(first)
    flags: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "-m", "-c"):
        # -X dev and -W error take the next word, -Xdev and -Werror do not.
        count = 2 if rest[0] in _FLAGS_WITH_A_WORD else 1
        flags, rest = [*flags, *rest[:count]], rest[count:]
    if found is None or not rest:
        raise ArgumentError(
            "There is no such Python program.",
            given=" ".join(program),
            expected="for example: pullback track -- python train.py",
        )
    script = Path(rest[0])
    if rest[0] not in ("-", "-m", "-c") and not script.exists():
        raise ArgumentError("There is no such program.", given=rest[0], mend="Check the spelling.")
    if script.is_file():
        script.open("rb").close()  # what cannot be read is refused by its name
    return found, flags, rest
