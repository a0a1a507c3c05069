"""What ``pullback check`` prints at its end, and writes into the files that were asked for."""

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from pullback.cli._files import write_file
from pullback.cli._options import Found
from pullback.cli._tasks import Outcome
from pullback.internal._secrets import mask_secrets
from pullback.internal._text import command_line
from pullback.report import (
    Report,
    Verdict,
    clean,
    print_problems,
    print_table,
    render_annotations,
    render_json,
    render_junit,
    render_page,
    render_sarif,
)

__all__ = ["Results", "aside", "show", "write_outputs"]


_GUESSED = (
    "With guessed inputs alone, which may lie outside of what the Function is made for "
    "(status 3, not 1):"
)


@dataclass(frozen=True)
class Results:
    """What a command has found."""

    outcomes: Sequence[Outcome]
    seconds: float
    problems: Sequence[str] = ()  # what could not be looked into, one line each
    partial: str = ""  # why not all that was asked for is here

    @property
    def checked(self) -> list[tuple[Outcome, Report]]:
        """What has a report."""
        return [(item, item.report) for item in self.outcomes if item.report is not None]


def show(results: Results, console: Console, *, verbose: bool = False) -> None:
    """Print what is broken with its mend and rerun line, the table, what is missing, a summary."""
    checked = sorted(results.checked, key=lambda pair: pair[1].rank)
    reports = [report for _, report in checked]
    console.print()
    for guessed in (False, True):
        bad = [(o, r) for o, r in checked if not r.ok and bool(r.guessed) is guessed]
        if bad and guessed:
            console.print(f"[bold yellow]{_GUESSED}[/]\n", soft_wrap=True)
        for outcome, report in bad:
            print_problems(report, outcome.rerun, console, verbose=verbose)
            if guessed:
                _ask_for_inputs(outcome, console)
    print_table(reports, console, verbose=verbose)
    for outcome in results.outcomes:
        if outcome.report is None:
            console.print(
                f"[yellow]not checked[/] {escape(outcome.name)}: {escape(clean(outcome.reason))}"
                + (f" [dim](accepted: {escape(outcome.accepted)})[/]" if outcome.accepted else ""),
                soft_wrap=True,
            )
            if outcome.guessed and not outcome.accepted:
                _ask_for_inputs(outcome, console)
    for problem in results.problems:
        console.print(f"[yellow]not looked into[/] {escape(clean(problem))}", soft_wrap=True)
    if results.partial:
        console.print(f"[bold yellow]{results.partial}[/]")
    shown = any(finding.repro for report in reports for finding in report.problems)
    _print_summary(results, console, scripts=shown and not verbose)


def _ask_for_inputs(outcome: Outcome, console: Console) -> None:
    """One line to paste, with the arguments that were guessed, to be put right."""
    line = f"{outcome.rerun} --input {shlex.quote(outcome.guessed)}"
    if "<locals>" in outcome.name:  # nobody but a program that makes it can hand it over
        line = command_line(["pullback", "check", "--inside", "--only", outcome.name])
        line += " -- python a_program_that_applies_it.py"
    console.print(f"  [dim]with yours:[/] {escape(line)}", soft_wrap=True)


def _print_summary(results: Results, console: Console, *, scripts: bool) -> None:
    if scripts:
        console.print("[dim]A script that shows each finding, and its entries: --verbose.[/]")
    outcomes = results.outcomes
    # What every clause passed over was not checked: "not checked" counts it.
    reports = [r for _, r in results.checked if any(f.verdict is not Verdict.SKIPPED for f in r)]
    given = [report for report in reports if not report.guessed]
    verdicts = [{finding.verdict for finding in report.problems} for report in given]
    bad = _counted({
        "[bold red]{} broken[/]": sum(Verdict.BROKEN in found for found in verdicts),
        "[bold magenta]{} with crashes[/]": sum(Verdict.CRASHES in found for found in verdicts),
        "[bold yellow]{} doubtful, with guessed inputs[/]": sum(
            bool(report.guessed) and not report.ok for report in reports
        ),
    })  # fmt: skip
    state = bad or ["[bold green]ok[/]" if reports else "nothing is known"]
    partly = sum(bool(outcome.unchecked) and outcome.report in reports for outcome in outcomes)
    training = sum(item.training and item.report in reports for item in outcomes)
    count = len(reports) - training
    trained = " and the training" if training else ""
    rest = _counted({
        "{} accepted": sum(len(report.accepted) for report in reports),
        "[yellow]{} not checked[/]": sum(bool(item.unchecked) for item in outcomes) - partly,
        "[yellow]{} not wholly[/]": partly,
        "gradient intent inferred for {}": sum(report.inferred for report in reports),
        "of {} as a surrogate, whose derivative is not judged": sum(
            report.inferred and report.gradient != "exact" for report in reports
        ),
    })  # fmt: skip
    checked = f"{count} Function{'' if count == 1 else 's'}{trained} checked"
    console.print(f"{', '.join([checked, *state, *rest])} in {results.seconds:.1f} s.")


def _counted(counts: dict[str, int]) -> list[str]:
    """What there is of each, in words."""
    return [words.format(count) for words, count in counts.items() if count]


def write_outputs(options: Found, results: Results, console: Console) -> None:
    """Write JSON, HTML, JUnit, SARIF and annotations, as far as the options ask for them."""
    reports, partial = [report for _, report in results.checked], results.partial
    missing = [(item.name, item.reason) for item in results.outcomes if item.report is None]
    whole: dict[str, Any] = {
        "reruns": {outcome.name: outcome.rerun for outcome in results.outcomes},
        "not_checked": missing, "not_imported": results.problems, "partial": partial,
    }  # fmt: skip
    if options.json is not None:
        text = render_json(reports, **whole)
        if options.json == "-":
            # In ASCII, which every output takes as it is.
            sys.stdout.write(json.dumps(json.loads(text), indent=2) + "\n")
        else:
            write_file(Path(options.json), text)
    if options.html is not None:
        command = command_line(["pullback", *mask_secrets(sys.argv[1:])])
        page = render_page(reports, command=command, seconds=results.seconds, **whole)
        write_file(options.html, page)
        console.print(f"Wrote {options.html}", markup=False)
    if options.junit is not None:
        write_file(options.junit, render_junit(reports, missing, partial))
    if options.sarif is not None:
        write_file(options.sarif, render_sarif(reports, missing, partial=partial))
    if options.annotations:
        # Where a workflow reads its commands; on stderr while the JSON has stdout for itself.
        stream = sys.stderr if options.json == "-" else sys.stdout
        stream.write(render_annotations(reports))


@contextlib.contextmanager
def aside(*, when: bool) -> Iterator[None]:
    """Send what is printed meanwhile to standard error, so that JSON has the output for itself."""
    if not when:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
