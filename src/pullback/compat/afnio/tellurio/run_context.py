"""The run that `log` speaks to."""

from pullback.errors import ArgumentError

__all__ = ["get_active_run_uuid", "set_active_run_uuid"]

_active: list[str] = []


def set_active_run_uuid(uuid: str | None) -> None:
    """Say which run is under way; None for none."""
    _active[:] = [] if uuid is None else [uuid]


def get_active_run_uuid() -> str:
    """The run under way.

    Raises:
        ValueError: no run has begun.
    """
    if not _active:
        raise ArgumentError("No run has begun.", mend="Call init(namespace, project) first.")
    return _active[0]
