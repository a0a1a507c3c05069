"""`Module`: a pipeline, or a part of one."""

from typing import Any

from pullback.compat.afnio.cognitive.functional import class_name
from pullback.text import Module

__all__ = ["Module", "module_of"]


def module_of(operation: Any) -> type[Module]:
    """An operation as a module."""
    rules = {"__doc__": operation.__doc__, "forward": staticmethod(operation)}
    return type(class_name(operation), (Module,), rules)
