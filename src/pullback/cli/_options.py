"""The options of ``pullback check``, and which of them cannot go together."""

import inspect
import math
import sys
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from pullback.cli._files import KEPT, refuse_recording
from pullback.cli._words import is_recording
from pullback.errors import ArgumentError
from pullback.internal._files import refuse_unwritable

__all__ = ["TIMEOUT", "Options", "options_signature"]

_INTENTS = ("exact", "surrogate", "nonlinear")

TIMEOUT = 60.0
"""Seconds that a Function may take unless another time is asked for."""


@dataclass(frozen=True)
class Options:
    """The options of ``pullback check``: their defaults, and what the command line says of them."""

    program: list[str] | None = None
    targets: Annotated[
        list[str],
        typer.Argument(
            help="package.module:Function, script.py:Function, package, or a recording (calls.pt). "
            "Nothing: what pullback ships. After --: a program to run and record.",
            show_default=False,
        ),
    ] = field(default_factory=list)
    inputs: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            help="Positional arguments as a Python expression; torch and math are known.",
        ),
    ] = None
    clauses: Annotated[
        str | None, typer.Option(help="Only these clauses, separated by commas.")
    ] = None
    without: Annotated[
        str | None,
        typer.Option(help="Leave these clauses out, for example compile, which takes longest."),
    ] = None
    thorough: Annotated[
        bool,
        typer.Option("--thorough", help="Compile with inductor and with shapes that change too."),
    ] = False
    gradient: Annotated[
        str | None, typer.Option(help="The intent: exact, surrogate or nonlinear.")
    ] = None
    seed: Annotated[int, typer.Option(help="The seed of every random choice.")] = 0
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds of work (CPU time, or sleep) that a Function may take, and the search "
            "for its inputs.  [default: 60]",
            show_default=False,
        ),
    ] = None
    ranks: Annotated[
        int | None,
        typer.Option(
            help="Check the clause distributed, and no other, on so many processes.",
            show_default=False,
        ),
    ] = None
    isolate: Annotated[
        bool | None,
        typer.Option(
            "--isolate/--no-isolate",
            help="Survive crashes and hangs; the default but for what pullback ships.",
            show_default=False,
        ),
    ] = None
    only: Annotated[str | None, typer.Option(help="Only Functions whose name contains this.")] = (
        None
    )
    json: Annotated[
        str | None, typer.Option("--json", help="Write the reports as JSON; - for stdout.")
    ] = None
    html: Annotated[Path | None, typer.Option(help="Write one self-contained HTML page.")] = None
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML.")] = None
    sarif: Annotated[Path | None, typer.Option(help="Write SARIF, for code scanning.")] = None
    annotations: Annotated[
        bool, typer.Option("--annotations", help="Print a GitHub annotation for each finding.")
    ] = False
    baseline: Annotated[
        Path | None, typer.Option(help="Accept the findings that this TOML file lists.")
    ] = None
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Accept what is found now, in that file.")
    ] = False
    allow_unchecked: Annotated[
        bool,
        typer.Option(
            "--allow-unchecked", help="Exit with 0 also where a Function could not be checked."
        ),
    ] = False
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Where the calls of a program are kept.  [default: .pullback/calls.pt]",
            show_default=False,
        ),
    ] = None
    calls: Annotated[int, typer.Option(min=1, help="Calls kept for each Function.")] = 3
    max_mebibytes: Annotated[
        float, typer.Option(min=0.001, help="Tensors kept for one call, in MiB.")
    ] = 32.0
    eager: Annotated[
        bool,
        typer.Option("--eager", help="Run the program without torch.compile, to see inside it."),
    ] = False
    inside: Annotated[
        bool,
        typer.Option(
            "--inside", help="Check in the program's own process at its end, with its objects."
        ),
    ] = False
    scripts: Annotated[
        list[Path],
        typer.Option(
            "--script",
            help="A program of yours: a recording may load what it and its folder define.",
            show_default=False,
        ),
    ] = field(default_factory=list)
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Load whatever a recording names; only for one that you made."
        ),
    ] = False
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", help="Print every finding, with a table of entries and its script."
        ),
    ] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False

    @property
    def given(self) -> str:
        """What is to be checked, as it was typed."""
        words = [*self.targets, *(["--", *self.program] if self.program else [])]
        return " ".join(words) or "no target"

    @property
    def kept(self) -> dict[str, int]:
        """How much of a program is recorded: the arguments of `pullback.recording.Limits`."""
        return {"calls": self.calls, "call_bytes": round(self.max_mebibytes * 2**20)}

    @property
    def program_output(self) -> int | None:
        """The descriptor that a program prints to, where the JSON has stdout for itself."""
        return sys.__stderr__.fileno() if self.json == "-" and sys.__stderr__ else None

    @property
    def how(self) -> dict[str, Any]:
        """The options of `pullback.check`, as plain data."""
        return {
            "clauses": self.clauses, "without": self.without or (), "thorough": self.thorough,
            "gradient": self.gradient, "seed": self.seed, "timeout": self.timeout or TIMEOUT,
            "ranks": self.ranks,
        }  # fmt: skip

    @property
    def rerun(self) -> tuple[str, ...]:
        """The options that another check of the same Function needs to find the same."""
        words: list[str] = []
        for flag, value in (
            ("--clauses", self.clauses),
            ("--without", self.without),
            ("--gradient", self.gradient),
            ("--seed", self.seed or None),
            ("--ranks", self.ranks),
            ("--timeout", None if self.timeout is None else f"{self.timeout:g}"),
            ("--baseline", self.baseline),
        ):
            if value is not None:
                words += [flag, str(value)]
        if self.thorough:
            words.append("--thorough")
        if self.isolate is not None:
            words.append("--isolate" if self.isolate else "--no-isolate")
        return tuple(words)

    def refuse_values(self) -> None:
        """Refuse a value that no option takes.

        Raises:
            ArgumentError: the intent is unknown, or the time is none.
        """
        if self.gradient not in (None, *_INTENTS):
            raise ArgumentError(
                "The gradient intent is unknown.",
                given=self.gradient, expected=", ".join(_INTENTS),
            )  # fmt: skip
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise ArgumentError(
                "The timeout is not positive.", given=f"{self.timeout:g} s",
                expected="a number of seconds",
            )  # fmt: skip

    def refuse_conflicts(self) -> None:
        """Refuse, before anything is run, what cannot be done.

        Raises:
            ArgumentError: two options do not go together, or a file cannot be written.
        """
        if self.program is not None and self.targets:
            raise ArgumentError(
                "A target and a program were both given.",
                given=f"{' '.join(self.targets)} -- {' '.join(self.program)}",
                expected="one of them",
                mend="Check them one after the other.",
            )
        single = len(self.targets) == 1 and ":" in self.targets[0]
        if self.inputs is not None and not single:
            raise ArgumentError(
                "--input goes with one Function.",
                given=self.given,
                mend='pullback check package.module:Function --input "torch.randn(3, 4)"',
            )
        self._refuse_for_programs()
        if (self.scripts or self.trust) and not any(map(is_recording, self.targets)):
            raise ArgumentError(
                "--script and --trust go with a recording.",
                given=self.given,
                mend="pullback check calls.pt --script train.py",
            )
        if self.timeout is not None and self.isolate is False:
            raise ArgumentError(
                "--timeout needs a process of its own for each check.",
                given="--timeout with --no-isolate",
                mend="Leave out one of the two.",
            )
        if self.update_baseline and self.baseline is None:
            raise ArgumentError(
                "--update-baseline needs a file.",
                mend="pullback check ... --baseline pullback.toml --update-baseline",
            )
        self._refuse_files()

    def _refuse_for_programs(self) -> None:
        if self.program is None and (self.output is not None or self.eager or self.inside):
            raise ArgumentError(
                "--output, --eager and --inside go with a program.",
                given=self.given,
                mend="pullback check -o calls.pt -- python train.py",
            )
        if self.inside and (self.output is not None or self.isolate is not None):
            raise ArgumentError(
                "--inside keeps no recording, and checks in copies of the program.",
                given="--inside with --output, --isolate or --no-isolate",
                mend="Leave out one of the two.",
            )

    def _refuse_files(self) -> None:
        json_path = None if self.json in (None, "-") else Path(self.json or "")
        written = self.baseline if self.update_baseline else None
        for path in (self.html, self.junit, self.sarif, json_path, written):
            if path is not None:
                refuse_unwritable(path)
        if self.baseline is not None and not self.update_baseline and not self.baseline.is_file():
            raise ArgumentError(
                f"There is no baseline {self.baseline}.",
                mend="Write one with --update-baseline, or check the spelling.",
            )
        if self.program is not None and not self.inside:
            refuse_recording(self.output or KEPT)


def options_signature(kind: type) -> inspect.Signature:
    """A parameter for each field that has something to say to typer."""
    hints = get_type_hints(kind, include_extras=True)
    return inspect.Signature([
        inspect.Parameter(
            item.name, inspect.Parameter.KEYWORD_ONLY,
            default=None if item.default is MISSING else item.default,
            annotation=hints[item.name],
        )
        for item in fields(kind)
        if get_origin(hints[item.name]) is Annotated
    ])  # fmt: skip
