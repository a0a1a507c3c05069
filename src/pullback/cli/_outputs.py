"""Write what ``pullback check`` found into the files that were asked for."""

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from pullback.cli._files import write_file
from pullback.cli._options import Found
from pullback.cli._tasks import Outcome
from pullback.internal._secrets import mask_secrets
from pullback.report import (
    render_annotations,
    render_json,
    render_junit,
    render_page,
    render_sarif,
)

__all__ = ["aside", "write_outputs"]


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
