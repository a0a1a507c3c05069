"""What is counted is a whole number: anything else is refused by its name."""

import numbers
from typing import Any

from pullback.errors import ArgumentError

__all__ = ["check_counts"]


def check_counts(least: int = 1, /, **given: Any) -> None:
    """Refuse what is no whole number, or one below the least: 1, or 0.

    Raises:
        ArgumentError: it names the first such.
    """
    for name, value in given.items():
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if not whole or int(value) < least:
            raise ArgumentError(
                f"{name} is no {'positive ' * least}whole number.", given=f"{name}={value!r:.60}",
                expected=f"{'one' if least else 'none'} or more",
            )  # fmt: skip
