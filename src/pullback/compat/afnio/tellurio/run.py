"""What only the hosted service has: each name says what does it here."""

from contextlib import nullcontext as suppress_variable_notifications
from typing import Any, NoReturn

from pullback.errors import UnsupportedError

__all__ = ["Run", "init", "log", "login", "suppress_variable_notifications"]


def login(*args: Any, **kwargs: Any) -> NoReturn:
    """There is no account.

    Raises:
        RuntimeError: always.
    """
    raise UnsupportedError(
        "There is no account and no hosted run: everything runs here.",
        mend="Leave it out. `with pullback.text.lm.Run('run.sqlite'):` keeps what is paid for.",
    )


Run = init = log = login
