"""The options and the fixture of the pytest plugin.

``pytest --pullback`` records the Functions that the tests apply, with their real inputs, and checks
each after the last test in a copy of the process, so that a crash or a hang is a verdict. It prints
the table Function x clause; the run fails when one is broken, and its last line says so.
The fixture ``check_function`` checks one Function inside a test.

pytest loads this file in every run, so it imports next to nothing until it is used.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pullback.errors import MissingExtraError
from pullback.internal._extras import require_tensor

if TYPE_CHECKING:
    from pullback.report import Report

__all__ = ["check_function", "pytest_addoption", "pytest_configure"]

_KEY = "pullback-checks"
_OPTIONS = (
    ("clauses", None, "IDS", "only these clauses of the contract, separated by commas"),
    ("only", "", "TEXT", "only Functions whose module:name contains this"),
    ("timeout", 60.0, "SECONDS", "that the check of one call may take; 60 by default"),
    ("html", None, "PATH", "also write one HTML page"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--pullback`` and its options."""
    group = parser.getgroup("pullback", "custom differentiable code")
    applied = "check every custom torch.autograd.Function that the tests apply"
    group.addoption("--pullback", action="store_true", help=applied)
    for name, default, metavar, text in _OPTIONS:
        taken = type(default) if default is not None else str
        group.addoption(
            f"--pullback-{name}", default=default, type=taken, metavar=metavar, help=text
        )


def pytest_configure(config: pytest.Config) -> None:
    """Start recording when ``--pullback`` is given."""
    if not config.getoption("--pullback"):
        return
    try:
        require_tensor("pytest --pullback")
    except MissingExtraError as error:
        raise pytest.UsageError(str(error)) from error
    from pullback.pytest_plugin._session import (  # imports torch
        Controller,
        Session,
        refuse_options,
    )

    refuse_options(config)

    # pytest-xdist decides in a later hook; its options say already that workers will run the tests.
    spread = config.getoption("dist", "no") != "no" or config.getoption("numprocesses", None)
    distributed = bool(spread) and not hasattr(config, "workerinput")
    plugin = Controller(config) if distributed else Session(config)
    config.pluginmanager.register(plugin, _KEY)


@pytest.fixture
def check_function() -> Callable[..., "Report"]:
    """Check one Function: ``check_function(F, *inputs, gradient=None, clauses=None, ...)``.

    Returns:
        `pullback.check`, which fails the test when a clause is broken and otherwise returns the
        report.
    """
    from pullback.conformance import check  # imports torch

    def run(function: Any, *inputs: Any, **options: Any) -> "Report":
        report = check(function, *inputs, **options)
        report.raise_if_broken()
        return report

    return run
