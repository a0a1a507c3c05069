"""What ``pytest --pullback`` does: record while the tests run, check and report at the end.

Under pytest-xdist each worker records and checks its own Functions and sends the reports as JSON
to the controlling process, which merges them and prints the table.
"""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from pullback.conformance import can_copy, check_calls, select_clauses
from pullback.errors import PullbackError
from pullback.internal._files import OUR_PAGE, refuse_other, write_whole
from pullback.recording import Limits, Record, Recorder, copy_call, why_no_call
from pullback.report import Report, clean, merge_reports, print_problems, print_table, render_page
from pullback.tensor import Function

__all__ = ["Controller", "Session", "refuse_options"]


def refuse_options(config: pytest.Config) -> None:
    """Refuse, before any test runs, what cannot be done after the last.

    Raises:
        UsageError: a clause is unknown, a time is none, or the page cannot be written.
    """
    clauses = config.getoption("--pullback-clauses")
    page = config.getoption("--pullback-html")
    if not config.getoption("--pullback-timeout") > 0:
        raise pytest.UsageError("--pullback-timeout: not a positive number of seconds")
    option = "--pullback-clauses"
    try:
        select_clauses(clauses.split(",") if clauses else None)
        option = "--pullback-html"
        if page:
            refuse_other(Path(page), OUR_PAGE)
    except PullbackError as error:
        raise pytest.UsageError(f"{option}: {error}") from error


class _Face:
    """What is said at the end, whoever has checked.

    Arguments:
        config: the configuration of the run.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.reports: list[Report] = []
        self.missing: dict[str, str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A broken Function fails the run."""
        passed = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if passed and not all(report.ok for report in self.reports):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the broken Functions and the table, and write the page."""
        if not self.reports and not self.missing:
            terminalreporter.write_line("pullback: the tests applied no custom Function.")
            return
        terminalreporter.section("pullback: custom Functions")
        writer, buffer = terminalreporter._tw, StringIO()
        console = Console(
            width=max(writer.fullwidth, 100), force_terminal=writer.hasmarkup, highlight=False,
            emoji=False, file=buffer,
        )  # fmt: skip
        for report in sorted(self.reports, key=lambda report: report.rank):
            if not report.ok:
                print_problems(report, "", console)
        print_table(self.reports, console)
        for name, reason in self.missing.items():
            said = f"not checked {clean(name)}: {clean(reason)}"
            console.print(said, markup=False, soft_wrap=True)
        terminalreporter.write(buffer.getvalue())
        self._write_page(terminalreporter)

    def _write_page(self, reporter: Any) -> None:
        path = self._config.getoption("--pullback-html")
        if not path:
            return
        missing = list(self.missing.items())
        page = render_page(self.reports, not_checked=missing, command="pytest --pullback")
        try:
            write_whole(Path(path), page)
            reporter.write_line(f"pullback: wrote {path}")
        except OSError as error:
            reporter.write_line(f"pullback: {path} cannot be written: {error.strerror}", red=True)

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Say below the last line of pytest why a run with no failed test has failed."""
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        bad = [report.function for report in self.reports if not report.ok]
        if reporter is None or hasattr(config, "workerinput") or not (bad or self.missing):
            return
        named = ", ".join(bad[:3]) + (", ..." if len(bad) > 3 else "")
        broken = f"{len(bad)} of {len(self.reports)} Functions broken ({named}): the run fails"
        parts = [broken] if bad else []
        parts += [f"{len(self.missing)} not checked"] if self.missing else []
        reporter.write_line(f"pullback: {'; '.join(parts)}.", red=bool(bad), yellow=not bad)


class Session(_Face):
    """Records and checks in one process; also in each worker of pytest-xdist."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        self._recorder = Recorder(copy_call, limits=Limits(calls=2))
        for base in (torch.autograd.Function, Function):
            self._recorder.install(base)
        clauses = config.getoption("--pullback-clauses")
        self._clauses = clauses.split(",") if clauses else None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Check what was applied; a broken Function fails the run."""
        self._recorder.uninstall()
        self._recorder.settle()
        if session.exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.USAGE_ERROR):
            return
        self._check_all()
        output = getattr(self._config, "workeroutput", None)
        if output is None:
            super().pytest_sessionfinish(session)
            return
        reports = [report.to_json() for report in self.reports]
        output["pullback"] = json.dumps({"reports": reports, "missing": self.missing})

    def _check_all(self) -> None:
        only = self._config.getoption("--pullback-only")
        for record in self._recorder.records.values():
            name = record.locator.name
            if record.ignored or only not in name:
                continue
            if not record.calls:
                self.missing[name] = why_no_call(record.reasons)
                continue
            try:
                report = self._check(record)
            except PullbackError as error:
                self.missing[name] = " ".join(filter(None, (error.what, error.given)))
                continue
            self.reports.append(replace(report, function=name))

    def _check(self, record: Record) -> Report:
        # A copy has the live objects of the tests; where there is none, the check runs here.
        apart = can_copy()
        return check_calls(
            record.function,
            [(call.arguments, call.keywords) for call in record.calls],
            clauses=self._clauses,
            isolate="copy" if apart else False,
            timeout=self._config.getoption("--pullback-timeout") if apart else None,
        )


class Controller(_Face):
    """Collects what the workers of pytest-xdist have found."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        self._found: dict[str, list[Report]] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take the reports of a worker that has finished."""
        text = (getattr(node, "workeroutput", None) or {}).get("pullback")
        if text is None:
            if error:  # killed by a test, with all that its tests had applied
                self.missing[f"worker {node.gateway.id}"] = "it died before it checked anything"
            return
        data = json.loads(text)
        for item in data["reports"]:
            report = Report.from_json(item)
            self._found.setdefault(report.function, []).append(report)
        self.reports = [merge_reports(reports) for reports in self._found.values()]
        known = {**self.missing, **data["missing"]}
        # What one worker could not check another may have.
        self.missing = {name: why for name, why in known.items() if name not in self._found}
