"""What ``pullback check`` prints at its end, and writes into the files that were asked for."""

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from pullback.cli._files import write_file
from pullback.cli._options import Found
from pullback.cli._tasks import Outcome
from pullback.internal._secrets import mask_secrets
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

__all__ = ["aside", "show", "write_outputs"]


_GUESSED = (
    "With guessed inputs alone, which may lie outside of what the Function is made for "
    "(status 3, not 1):"
)


def show(
    outcomes: Sequence[Outcome],
    problems: Sequence[str],
    console: Console,
    seconds: float,
    partial: str = "",
    *,
    verbose: bool = False,
) -> None:
    """Print what is broken with its mend and rerun line, the table, what is missing, a summary."""
    checked = sorted(
        ((item, item.report) for item in outcomes if item.report is not None),
        key=lambda pair: pair[1].rank,
    )
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
    for outcome in outcomes:
        if outcome.report is None:
            console.print(
                f"[yellow]not checked[/] {escape(outcome.name)}: {escape(outcome.reason)}"
                + (f" [dim](accepted: {escape(outcome.accepted)})[/]" if outcome.accepted else ""),
                soft_wrap=True,
            )
            if outcome.guessed and not outcome.accepted:
                _ask_for_inputs(outcome, console)
    for item, report in checked:
        for finding in report if item.training else ():
            if finding.verdict is Verdict.UNTIDY:
                console.print(
                    f"[yellow]{finding.clause}[/] {escape(finding.detail)}", soft_wrap=True
                )
    for problem in problems:
        console.print(f"[yellow]not looked into[/] {escape(clean(problem))}", soft_wrap=True)
    if partial:
        console.print(f"[bold yellow]{partial}[/]")
    _print_summary(outcomes, reports, console, seconds)


def _ask_for_inputs(outcome: Outcome, console: Console) -> None:
    """One line to paste, with the arguments that were guessed, to be put right."""
    line = f"{outcome.rerun} --input {shlex.quote(outcome.guessed)}"
    if "<locals>" in outcome.name:  # nobody but a program that makes it can hand it over
        line = shlex.join(["pullback", "check", "--inside", "--only", outcome.name])
        line += " -- python a_program_that_applies_it.py"
    console.print(f"  [dim]with yours:[/] {escape(line)}", soft_wrap=True)


def _print_summary(
    outcomes: Sequence[Outcome], reports: Sequence[Report], console: Console, seconds: float
) -> None:
    # What every clause passed over was not checked: "not checked" counts it.
    reports = [r for r in reports if any(f.verdict is not Verdict.SKIPPED for f in r)]
    given = [report for report in reports if not report.guessed]
    verdicts = [{finding.verdict for finding in report.problems} for report in given]
    doubtful = sum(bool(report.guessed) and not report.ok for report in reports)
    broken = sum(Verdict.BROKEN in found for found in verdicts)
    crashing = sum(Verdict.CRASHES in found for found in verdicts)
    bad = [f"[bold red]{broken} broken[/]"] if broken else []
    bad += [f"[bold magenta]{crashing} with crashes[/]"] if crashing else []
    bad += [f"[bold yellow]{doubtful} doubtful, with guessed inputs[/]"] if doubtful else []
    state = ", ".join(bad) or ("[bold green]ok[/]" if reports else "nothing is known")
    accepted = sum(len(report.accepted) for report in reports)
    partly = sum(bool(outcome.unchecked) and outcome.report in reports for outcome in outcomes)
    missing = sum(bool(outcome.unchecked) for outcome in outcomes) - partly
    training = sum(item.training and item.report in reports for item in outcomes)
    count = len(reports) - training
    trained = " and the training" if training else ""
    parts = [f"{count} Function{'' if count == 1 else 's'}{trained} checked", state]
    if accepted:
        parts.append(f"{accepted} accepted")
    if missing:
        parts.append(f"[yellow]{missing} not checked[/]")
    if partly:
        parts.append(f"[yellow]{partly} not wholly[/]")
    inferred = sum(report.inferred for report in reports)
    if inferred:
        parts.append(f"gradient intent inferred for {inferred}")
    console.print(f"{', '.join(parts)} in {seconds:.1f} s.")


def write_outputs(
    options: Found,
    outcomes: Sequence[Outcome],
    problems: Sequence[str],
    console: Console,
    *,
    seconds: float,
    partial: str,
) -> None:
    """Write JSON, HTML, JUnit, SARIF and annotations, as far as the options ask for them."""
    reports = [outcome.report for outcome in outcomes if outcome.report is not None]
    missing = [(item.name, item.reason) for item in outcomes if item.report is None]
    reruns = {outcome.name: outcome.rerun for outcome in outcomes}
    if options.json is not None:
        text = render_json(
            reports, reruns=reruns, not_checked=missing, not_imported=problems, partial=partial
        )
        if options.json == "-":
            sys.stdout.write(text)
        else:
            write_file(Path(options.json), text)
    if options.html is not None:
        page = render_page(
            reports,
            not_checked=missing,
            not_imported=problems,
            command=shlex.join(["pullback", *mask_secrets(sys.argv[1:])]),
            reruns=reruns,
            seconds=seconds,
            partial=partial,
        )
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
