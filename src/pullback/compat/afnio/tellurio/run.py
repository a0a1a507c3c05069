"""`Run`: metrics of a run, kept in this process."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from pullback.errors import ArgumentError

__all__ = ["Run", "configure_logging", "init", "log", "login", "suppress_variable_notifications"]


class Run:
    """A run and what was logged in it.

    Arguments:
        namespace: whose it is.
        project: what it belongs to.
        name: its own name.

    Attributes:
        metrics: a list of pairs, a name and a value, in order.
        finished: whether it has ended.
    """

    def __init__(self, namespace: str, project: str, name: str | None = None) -> None:
        self.namespace, self.project, self.name = namespace, project, name
        self.metrics: list[tuple[str, Any]] = []
        self.finished = False

    def log(self, name: str, value: Any, step: int | None = None) -> None:
        """Keep a metric."""
        self.metrics.append((name, value))

    def finish(self, status: Any = None) -> None:
        """End the run."""
        self.finished = True
        if self in _runs:
            _runs.remove(self)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()


_runs: list[Run] = []


def init(
    namespace_slug: str, project_display_name: str, name: str | None = None, **details: Any
) -> Run:
    """Begin a run; nothing is sent anywhere."""
    run = Run(namespace_slug, project_display_name, name)
    _runs.append(run)
    return run


def log(name: str, value: Any, step: int | None = None) -> None:
    """Keep a metric in the run that began last.

    Raises:
        ValueError: no run has begun.
    """
    if not _runs:
        raise ArgumentError("No run has begun.", mend="Call init(namespace, project) first.")
    _runs[-1].log(name, value, step)


def login(api_key: str | None = None, relogin: bool = False) -> dict[str, Any]:
    """There is no account: nothing is asked and nothing kept."""
    return {"local": True}


@contextlib.contextmanager
def suppress_variable_notifications() -> Iterator[None]:
    """Variables notify nobody; this is here so that programs run."""
    yield


def configure_logging(verbosity: str = "info") -> None:
    """Set the level of the logger ``pullback``."""
    logging.getLogger("pullback").setLevel(verbosity.upper())
