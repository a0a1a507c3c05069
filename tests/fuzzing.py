"""How many examples the property tests try: `make fuzz` asks for more."""

import os

__all__ = ["examples"]

_FACTOR = int(os.environ.get("PULLBACK_FUZZ", "1"))


def examples(count: int) -> int:
    """The number of examples of a property test that tries ``count`` in `make test`."""
    return count * _FACTOR
