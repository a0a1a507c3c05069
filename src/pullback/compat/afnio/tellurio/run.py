"""`Run`: metrics of a run, kept in this process: there is no account, nothing is sent anywhere."""

import contextlib
import logging
import uuid
from typing import Any, NoReturn

from pullback.compat.afnio.tellurio.run_context import get_active_run_uuid, set_active_run_uuid
from pullback.errors import UnsupportedError

__all__ = ["Run", "configure_logging", "init", "log", "login", "suppress_variable_notifications"]

_runs: dict[str, "Run"] = {}


class Run:
    """A run and what was logged in it.

    Attributes:
        metrics: a list of pairs, a name and a value, in order.
    """

    def __init__(
        self,
        namespace_slug: str,
        project_display_name: str,
        name: str | None = None,
        **details: Any,
    ) -> None:
        self.namespace, self.project, self.name = namespace_slug, project_display_name, name
        self.uuid = str(uuid.uuid4())
        self.metrics: list[tuple[str, Any]] = []
        _runs[self.uuid] = self
        set_active_run_uuid(self.uuid)

    def log(self, name: str, value: Any, step: int | None = None) -> None:
        """Keep a metric."""
        self.metrics.append((name, value))

    def finish(self, status: Any = None) -> None:
        """End the run."""
        _runs.pop(self.uuid, None)
        set_active_run_uuid(next(reversed(_runs), None))

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()


init = Run  # begins a run


def log(name: str, value: Any, step: int | None = None) -> None:
    """Keep a metric in the run under way.

    Raises:
        ValueError: no run has begun.
    """
    _runs[get_active_run_uuid()].log(name, value, step)


def login(api_key: str | None = None, relogin: bool = False) -> NoReturn:
    """There is no account.

    Raises:
        RuntimeError: always.
    """
    raise UnsupportedError(
        "There is no account to log in to: everything runs here.",
        mend="Leave login out. `with pullback.text.lm.Run('run.sqlite'):` keeps what is paid for.",
    )


def suppress_variable_notifications() -> contextlib.AbstractContextManager[None]:
    """Variables notify nobody; this is here so that programs run."""
    return contextlib.nullcontext()


def configure_logging(verbosity: str = "info") -> None:
    """Set the level of the logger ``pullback``."""
    logging.getLogger("pullback").setLevel(verbosity.upper())
