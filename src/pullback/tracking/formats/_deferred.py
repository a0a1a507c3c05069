"""Outputs of a model that compute later, when nothing rounds any more."""

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from pullback.errors import UnsupportedError

__all__ = ["check_output"]


def check_output(output: Any) -> None:
    """Refuse generators, coroutines, functions and modules, also within containers.

    Raises:
        UnsupportedError: there is one.
    """
    found = _deferred(output)
    if found is not None:
        raise UnsupportedError(
            "simulate_format cannot round what a model computes after its forward.",
            given=f"an output of type {type(found).__name__}",
            expected="tensors, in containers or not",
            mend="Return what it computes, such as list(...) of a generator.",
        )


def _deferred(value: Any) -> Any:
    """What computes later in an output; ``None`` if nothing does."""
    if isinstance(value, type):
        return None
    if callable(value) or isinstance(value, Iterator | AsyncIterator | Awaitable):
        return value
    parts: Any = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple | AbstractSet):
        parts = value
    elif dataclasses.is_dataclass(value):
        parts = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return next((found for found in map(_deferred, parts) if found is not None), None)
