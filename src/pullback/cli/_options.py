"""The options of ``pullback check``, and which of them cannot go together."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pullback.cli._files import KEPT, refuse_recording
from pullback.cli._targets import is_recording
from pullback.errors import ArgumentError
from pullback.internal._files import refuse_unwritable
from pullback.recording import Limits

__all__ = ["TIMEOUT", "Options"]

TIMEOUT = 60.0
"""Seconds that a Function may take unless another time is asked for."""


@dataclass(frozen=True)
class Options:
    """The options of ``pullback check``, as they were given."""

    targets: tuple[str, ...] = ()
    program: list[str] | None = None
    inputs: str | None = None
    clauses: str | None = None
    without: str | None = None
    thorough: bool = False
    gradient: str | None = None
    seed: int = 0
    timeout: float | None = None
    isolate: bool | None = None
    only: str | None = None
    json: str | None = None
    html: Path | None = None
    junit: Path | None = None
    sarif: Path | None = None
    annotations: bool = False
    baseline: Path | None = None
    update_baseline: bool = False
    allow_unchecked: bool = False
    output: Path | None = None
    calls: int = 3
    call_bytes: int = 32 * 2**20
    eager: bool = False
    inside: bool = False
    scripts: tuple[Path, ...] = ()
    trust: bool = False
    verbose: bool = False

    @property
    def given(self) -> str:
        """What is to be checked, as it was typed."""
        words = [*self.targets, *(["--", *self.program] if self.program else [])]
        return " ".join(words) or "no target"

    @property
    def limits(self) -> Limits:
        """How much of a program is recorded."""
        return Limits(calls=self.calls, call_bytes=self.call_bytes)

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
