"""`open_function`: the inside of torch's functions that are written in Python."""

import types
from collections.abc import Callable
from functools import cache
from typing import Any

__all__ = ["open_function"]


@cache
def open_function(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return a torch function written in Python so that a mode sees inside.

    It begins by asking whether anything overrides it; in the copy nothing does, so that its body
    runs, for example the projections inside of multi-head attention.
    """
    # Methods of tensors hold no products, and call themselves through super().
    modules = ("torch.nn.functional", "torch.functional")
    if not isinstance(function, types.FunctionType) or function.__module__ not in modules:
        return None
    questions = [name for name in function.__globals__ if name.startswith("has_torch_function")]
    if not questions:
        return None
    answers = dict.fromkeys(questions, _never)
    copy = types.FunctionType(
        function.__code__,
        {**function.__globals__, **answers},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _never(*values: object) -> bool:
    return False
