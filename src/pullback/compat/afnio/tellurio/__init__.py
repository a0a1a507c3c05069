"""Runs, kept in this process: there is no account and nothing is sent anywhere."""

from pullback.compat.afnio.tellurio.run import (
    Run,
    configure_logging,
    init,
    log,
    login,
    suppress_variable_notifications,
)

__all__ = [
    "Run",
    "configure_logging",
    "init",
    "log",
    "login",
    "suppress_variable_notifications",
]
