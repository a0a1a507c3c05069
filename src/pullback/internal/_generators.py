"""The generators of random numbers that Python and numpy share among all code of a process."""

import functools
import random
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["rewind_shared"]


def rewind_shared() -> list[Callable[[], None]]:
    """What puts those generators back to where they are now."""
    undo: list[Callable[[], None]] = [functools.partial(random.setstate, random.getstate())]
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        undo.append(functools.partial(numpy.set_state, numpy.get_state(legacy=False)))
    return undo
