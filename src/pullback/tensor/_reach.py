"""What the code of rules reaches: the names they refer to, and the functions among these."""

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["MEMOISED", "by_name", "codes", "filled_cells", "functions", "global_names", "named"]

MEMOISED = type(functools.cache(len))


def functions(
    rules: Iterable[Any], follows: Callable[[types.FunctionType], bool], depth: int
) -> list[types.FunctionType]:
    """The rules, and the functions that they refer to by name, wrapped and unwrapped.

    Arguments:
        rules: functions or methods; anything else is left out.
        follows: whether a function is one to look into.
        depth: how many calls lead from a rule to a function.
    """
    found: dict[types.FunctionType, None] = {}
    waiting = [(part, depth) for rule in rules for part in (inspect.unwrap(rule), rule)]
    while waiting:
        function, left = waiting.pop(0)
        function = getattr(function, "__func__", function)
        if isinstance(function, MEMOISED):
            function = function.__wrapped__
        if not isinstance(function, types.FunctionType) or function in found:
            continue
        if not follows(function):
            continue
        found[function] = None
        if left:
            waiting += [(value, left - 1) for value in named(function)]
    return list(found)


def named(function: types.FunctionType) -> list[Any]:
    """The values that a function closes over, and those of the global names that it refers to."""
    return list(by_name(function).values())


def by_name(function: types.FunctionType) -> dict[str, Any]:
    """The same by the names that the function has for them."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closed = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    return {name: function.__globals__[name] for name in global_names(function)} | closed


def filled_cells(function: types.FunctionType) -> list[types.CellType]:
    """The cells of a closure that have a value already."""
    return [cell for cell in function.__closure__ or () if _is_filled(cell)]


def global_names(function: types.FunctionType) -> list[str]:
    """The global names that a function refers to, and what is defined inside of it, in order."""
    names = {name for code in codes(function.__code__) for name in code.co_names}
    return sorted(names & function.__globals__.keys())


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code and all that is defined inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
