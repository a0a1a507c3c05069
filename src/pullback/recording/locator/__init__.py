"""`Locator`: the one way to name a Function or callable, and the one place to find it."""

from pullback.recording.locator._find import (
    find,
    global_names,
    load_module,
    load_script,
    only_defines,
    refuse_lost,
)
from pullback.recording.locator._locator import Locator
from pullback.recording.locator._source import definition, derives_from_function, source_of

__all__ = [
    "Locator",
    "definition",
    "derives_from_function",
    "find",
    "global_names",
    "load_module",
    "load_script",
    "only_defines",
    "refuse_lost",
    "source_of",
]
