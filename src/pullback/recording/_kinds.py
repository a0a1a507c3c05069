"""What two calls of a Function have in common that show the same of it: all but the numbers.

A call of a training program pays for this, so that it is some microseconds, and raises nothing: a
tensor may have no shape, and a list may hold itself. Such calls are all alike, and why they cannot
be kept is said by who copies them.

A copy of this file is imported into the program that is recorded.
"""

import enum
import types
from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["HELPERS", "given_to_operator", "pattern_of", "signature_of"]

_BY_VALUE = (
    bool, int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
_BY_NAME = (type, types.FunctionType, types.BuiltinFunctionType)
_UNKNOWN = "?"


def pattern_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A digit for each tensor of a call, 1 where it requires a gradient.

    Where no graph is built, as within the forward or backward of another Function, none is asked.

    Example:
        >>> pattern_of((torch.ones(2), [torch.ones(2, requires_grad=True)]), {})
        '01'
    """
    try:
        flags = "".join(_flags(args)) + "".join(_flags(kwargs.values()))
        return flags if torch.is_grad_enabled() else "0" * len(flags)
    except Exception:  # of the program's own types too
        return _UNKNOWN


def given_to_operator(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What an operator was given, of what torch hands on: the last says what was given by name."""
    return args[:-1], {**args[-1].keyword_only_args}


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any], *, operator: bool = False) -> Any:
    """The shapes, dtypes and kinds of the arguments; what chooses a branch counts by its value."""
    try:
        if operator:
            args, kwargs = given_to_operator(args)
        items = [_kind(item) for item in args]
        if kwargs:
            items.extend((name, _kind(item)) for name, item in kwargs.items())
        found = (torch.is_grad_enabled(), *items)
        hash(found)  # a size that a tracer leaves open has none
        return found
    except Exception:
        return _UNKNOWN


def _flags(values: Iterable[Any]) -> list[str]:
    found: list[str] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append("1" if value.requires_grad else "0")
        elif type(value) is list or type(value) is tuple:
            found += _flags(value)
    return found


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.requires_grad
    kind = type(value)
    if kind in _BY_VALUE:
        return kind, value
    if isinstance(value, (list, tuple)):
        return kind, tuple([_kind(item) for item in value])
    return _rarer_kind(value, kind)


def _rarer_kind(value: Any, kind: type) -> Any:
    if isinstance(value, enum.Enum):
        return kind, value.name
    if isinstance(value, _BY_NAME):
        return kind, value.__module__, value.__qualname__
    if kind is dict:
        return kind, tuple([(_kind(k), _kind(v)) for k, v in value.items()])
    fields = getattr(kind, "__dataclass_fields__", None)
    if fields:
        return kind, tuple([_kind(getattr(value, name, None)) for name in fields])
    return kind


HELPERS = (pattern_of, given_to_operator, signature_of, _flags, _kind, _rarer_kind)
"""Every function here, for whoever has to keep a compiler away from them."""
