"""The options of the commands that check, verify and record, and which cannot go together."""

# ruff: noqa: RUF009 - what the defaults call makes fields

import inspect
import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from pullback.cli import _words
from pullback.cli._files import KEPT, refuse_recording, refuse_same
from pullback.cli._words import is_recording
from pullback.errors import ArgumentError
from pullback.internal._files import OUR_PAGE, refuse_other, refuse_unwritable
from pullback.internal._secrets import mask_secrets

__all__ = [
    "REQUEST",
    "TIMEOUT",
    "CheckOptions",
    "Found",
    "RecordOptions",
    "Recorded",
    "VerifyOptions",
    "signature_of",
]

_INTENTS = ("exact", "surrogate", "nonlinear")
REQUEST = "PULLBACK_INSIDE"
"""The variable that tells a program's processes how to check at their end."""
TIMEOUT = 60.0
"""Seconds of work for a Function or a promise, unless another time is asked for."""
_AGAIN = ("clauses", "without", "gradient", "seed", "ranks", "timeout", "baseline", "thorough",
          "isolate")  # fmt: skip
_NEEDED: Any = inspect.Parameter.empty


def _option(default: Any, text: str, *names: str, **how: Any) -> Any:
    """A field that the command line offers, under its own name or others."""
    return _offered(default, lambda own: typer.Option(*(names or (own,)), help=text, **how))


def _argument(default: Any, text: str) -> Any:
    """A field that is given by its place on the command line."""
    return _offered(default, lambda own: typer.Argument(help=text, show_default=False))


def _offered(default: Any, offer: Callable[[str], Any]) -> Any:
    if default is list:
        return field(default_factory=list, metadata={"offer": offer})
    return field(default=default, metadata={"offer": offer})


def signature_of(kind: type) -> inspect.Signature:
    """What typer reads: a parameter for each field that is offered, a command's own first."""
    hints = get_type_hints(kind)
    own = inspect.get_annotations(kind)
    return inspect.Signature([
        inspect.Parameter(
            item.name, inspect.Parameter.KEYWORD_ONLY,
            # Of a list typer wants none: the class makes it.
            default=None if item.default_factory is list else item.default,
            annotation=Annotated[
                hints[item.name],
                item.metadata["offer"](f"--{item.name.replace('_', '-')}"),
            ],
        )
        for item in sorted(fields(kind), key=lambda item: item.name not in own)
        if "offer" in item.metadata
    ])  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Found:
    """How findings are told and written: what `check` and `verify` have in common."""

    seed: int = _option(0, "The seed of every random choice.", min=-(2**63), max=2**63 - 1)
    json: str | None = _option(None, "Write the reports as JSON; - for stdout.")
    html: Path | None = _option(None, "Write one self-contained HTML page.")
    junit: Path | None = _option(None, "Write JUnit XML.")
    sarif: Path | None = _option(None, "Write SARIF, for code scanning.")
    annotations: bool = _option(False, "Print a GitHub annotation for each finding.")
    verbose: bool = _option(False, "Print every finding, with its tables and its script.")
    debug: bool = _option(False, "Show tracebacks.")

    def refuse_files(self, *others: Path | None) -> None:
        """Refuse, before anything is run, a file that cannot be written, or is one of others."""
        json_path = None if self.json in (None, "-") else Path(self.json or "")
        written = (
            (self.html, OUR_PAGE), (self.junit, '<testsuites name="pullback"'),
            (self.sarif, '"name": "pullback"'), (json_path, '"partial": '),
        )  # fmt: skip
        for path, sign in written:
            if path is not None:
                refuse_other(path, sign)
        refuse_same(*others, *(path for path, _ in written))


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """How much of a program is recorded: what `check` and `record` have in common."""

    program: list[str] | None = field(default_factory=lambda: _words.program)
    calls: int = _option(3, "Calls kept for each Function.", min=1)
    max_mebibytes: float = _option(32.0, "Tensors kept for one call, in MiB.", min=0.001, max=2**20)
    eager: bool = _option(False, "Run the program without torch.compile, to see inside it.")

    @property
    def kept(self) -> dict[str, int]:
        """The arguments of `Limits`."""
        return {"calls": self.calls, "call_bytes": round(self.max_mebibytes * 2**20)}

    @property
    def run_again(self) -> tuple[str, ...]:
        """The options that another run of the program needs to record the same."""
        return _differing(self, ("calls", "max_mebibytes", "eager"))


@dataclass(frozen=True, kw_only=True)
class RecordOptions(Recorded):
    """The options of ``pullback record``."""

    output: Path = _option(Path("calls.pt"), "The recording to write.", "--output", "-o")
    debug: bool = _option(False, "Show tracebacks.")


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(Found):
    """The options of ``pullback verify``."""

    kernels: list[str] = _argument(_NEEDED, "package.module:kernel, or script.py:kernel; several.")
    reference: str = _option(_NEEDED, "module:plain, of plain torch.", "--reference", "-r")
    inputs: str = _option(
        _NEEDED, "module:make, a function that makes positional arguments, or they themselves as "
        "a Python expression; torch and math are known.", "--inputs", "-i",
    )  # fmt: skip
    forbid: list[str] = _option(list, "A function or operator that a kernel must not call.")
    timeout: float = _option(TIMEOUT, "Seconds of work for each promise.")
    isolate: bool = _option(True, "Survive crashes and hangs.", "--isolate/--no-isolate")
    results: Path | None = _option(
        None, "Add each report to this file of JSON lines; go on from what it holds."
    )

    @property
    def how(self) -> dict[str, Any]:
        """The options of `pullback.verify`, as plain data."""
        return {
            "forbid": tuple(self.forbid), "seed": self.seed, "timeout": self.timeout,
            "isolate": self.isolate,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Found, Recorded):
    """The options of ``pullback check``."""

    targets: list[str] = _argument(
        list, "package.module:Function, script.py:Function, package, or a recording (calls.pt). "
        "Nothing: what pullback ships. After --: a program to run and record.",
    )  # fmt: skip
    inputs: str | None = _option(
        None, "Positional arguments as a Python expression; torch and math are known.",
        "--input", "-i",
    )  # fmt: skip
    clauses: str | None = _option(None, "Only these clauses, separated by commas.")
    without: str | None = _option(
        None, "Leave these clauses out, for example compile, which takes longest."
    )
    thorough: bool = _option(False, "Compile with inductor and with shapes that change too.")
    gradient: str | None = _option(None, f"The intent: {', '.join(_INTENTS)}.")
    timeout: float | None = _option(
        None, "Seconds of work (CPU time, or sleep) that a Function may take, and the search for "
        f"its inputs; {TIMEOUT:g} by default.",
    )  # fmt: skip
    ranks: int | None = _option(
        None, "Check the clause distributed, and no other, on so many processes.", min=2
    )
    isolate: bool | None = _option(
        None, "Survive crashes and hangs; the default but for what pullback ships.",
        "--isolate/--no-isolate",
    )  # fmt: skip
    only: str | None = _option(None, "Only Functions whose name contains this.")
    baseline: Path | None = _option(None, "Accept the findings that this TOML file lists.")
    update_baseline: bool = _option(
        False, "List what is found now in that file, to be given reasons."
    )
    allow_unchecked: bool = _option(
        False, "Exit with 0 also where a Function could not be checked."
    )
    output: Path | None = _option(
        None, f"Where the calls of a program are kept; {KEPT} by default.", "--output", "-o"
    )
    inside: bool = _option(
        False, "Check in the program's own process at its end, with its objects."
    )
    scripts: list[Path] = _option(
        list, "A program of yours: a recording may load what it and its folder define.", "--script"
    )
    trust: bool = _option(False, "Load whatever a recording names; only for one that you made.")

    @property
    def given(self) -> str:
        """What is to be checked, as it was typed."""
        words = [*self.targets, *(["--", *mask_secrets(self.program)] if self.program else [])]
        return shlex.join(words) or "no target"

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
    def environment(self) -> dict[str, str]:
        """That of a program, whose processes are told how to check at their end."""
        request = {"only": self.only, "how": self.how, "folder": os.getcwd()}
        return {**os.environ, REQUEST: json.dumps(request)}

    @property
    def rerun(self) -> tuple[str, ...]:
        """The options that another check of the same Function needs to find the same."""
        return _differing(self, _AGAIN)

    def refuse_values(self) -> None:
        """Refuse a value that no option takes."""
        _refuse(
            self.gradient not in (None, *_INTENTS), "The gradient intent is unknown.",
            self.gradient, f"--gradient {', '.join(_INTENTS)}",
        )  # fmt: skip
        _refuse(
            self.timeout is not None and not 0 < self.timeout < math.inf,
            "The timeout is not positive.", f"{self.timeout} s", "Give a number of seconds.",
        )  # fmt: skip

    def refuse_conflicts(self) -> None:
        """Refuse, before anything is run, what cannot be done."""
        single = len(self.targets) == 1 and ":" in self.targets[0]
        _refuse(
            self.program is not None and self.targets, "A target and a program were both given.",
            self.given, "Check them one after the other.",
        )  # fmt: skip
        _refuse(
            self.inputs is not None and not single,
            "--input goes with one Function.", self.given,
            'pullback check package.module:Function --input "torch.randn(3, 4)"',
        )  # fmt: skip
        _refuse(
            self.program is None and (self.output is not None or self.eager or self.inside),
            "--output, --eager and --inside go with a program.", self.given,
            "pullback check -o calls.pt -- python train.py",
        )  # fmt: skip
        _refuse(
            self.inside and (self.output is not None or self.isolate is not None),
            "--inside keeps no recording, and checks in copies of the program.",
            "--inside with --output, --isolate or --no-isolate", "Leave out one of the two.",
        )  # fmt: skip
        _refuse(
            (self.scripts or self.trust) and not any(map(is_recording, self.targets)),
            "--script and --trust go with a recording.", self.given,
            "pullback check calls.pt --script train.py",
        )  # fmt: skip
        _refuse(
            self.timeout is not None and self.isolate is False,
            "--timeout needs a process of its own for each check.",
            "--timeout with --no-isolate", "Leave out one of the two.",
        )  # fmt: skip
        _refuse(
            self.update_baseline and self.baseline is None, "--update-baseline needs a file.", None,
            "pullback check ... --baseline pullback.toml --update-baseline",
        )  # fmt: skip
        self.refuse_files()

    def refuse_files(self, *others: Path | None) -> None:
        """Refuse, before anything is run, a file that cannot be read or written."""
        super().refuse_files(*others, self.output, self.baseline)
        if self.baseline is not None and self.update_baseline:
            refuse_unwritable(self.baseline)
        elif self.baseline is not None and not self.baseline.exists():
            raise ArgumentError(
                f"There is no baseline {self.baseline}.",
                mend="Write one with --update-baseline, or check the spelling.",
            )
        if self.program is not None and not self.inside:
            refuse_recording(self.output or KEPT)


def _differing(options: Any, names: Iterable[str]) -> tuple[str, ...]:
    """The words of a command line that give these options, but for those that are as usual."""
    words: list[str] = []
    usual = {item.name: item.default for item in fields(options)}
    for name in names:
        value = getattr(options, name)
        if value != usual[name]:
            flag = (name if value is not False else f"no-{name}").replace("_", "-")
            told = f"{value:g}" if isinstance(value, float) else str(value)
            words += [f"--{flag}", *([] if isinstance(value, bool) else [told])]
    return tuple(words)


def _refuse(wrong: object, what: str, given: str | None, mend: str) -> None:
    if wrong:
        raise ArgumentError(what, given=given, mend=mend)
