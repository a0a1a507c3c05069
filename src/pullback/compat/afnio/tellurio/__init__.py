"""What only the hosted service has: each name says what does it here."""

from pullback.compat.afnio.tellurio.run import init, log, login, suppress_variable_notifications

__all__ = ["init", "log", "login", "suppress_variable_notifications"]
