"""Give a copied module the forwards that were set on its instances, bound to the copy.

``copy.deepcopy`` leaves functions as they are: a ``forward`` that somebody set on a module, as in
``module.forward = lambda x: 2 * old(x)``, would run the original's parameters in the copy.
"""

import types
from typing import Any

from torch import nn

from pullback.errors import UnsupportedError

__all__ = ["rebind_forwards"]


def rebind_forwards(module: nn.Module, memo: dict[int, Any]) -> None:
    """Bind each function that stands as ``forward`` on a module of the copy to the copy.

    The memo is what its ``copy.deepcopy`` recorded: the copy of each object, by identity.

    Raises:
        UnsupportedError: such a function finds the module by a global name.
    """
    made: dict[int, Any] = {}
    for part in module.modules():
        for name in ("forward", "base_forward"):
            if name in vars(part):
                vars(part)[name] = _rebind(vars(part)[name], memo, made)


def _rebind(value: Any, memo: dict[int, Any], made: dict[int, Any]) -> Any:
    """Return a value in which copied objects are replaced by their copies."""
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, types.MethodType):
        function = _rebind(value.__func__, memo, made)
        return types.MethodType(function, memo.get(id(value.__self__), value.__self__))
    if isinstance(value, types.FunctionType):
        _refuse_globals(value, memo)
        return _rebind_function(value, memo, made)
    if id(value) in memo and isinstance(value, nn.Module):
        return memo[id(value)]
    return value


def _refuse_globals(function: types.FunctionType, memo: dict[int, Any]) -> None:
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        owner = getattr(value, "__self__", value)
        if isinstance(owner, nn.Module) and id(owner) in memo:
            raise UnsupportedError(
                "A forward that was set on a module finds the module by a global name, so that a "
                "copy of the module would run the original.",
                given=f"{function.__qualname__}, which reads {name}",
                mend="Pass the module to it, or make a class with this forward.",
            )


def _rebind_function(
    function: types.FunctionType, memo: dict[int, Any], made: dict[int, Any]
) -> types.FunctionType:
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    fresh = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, None, cells or None
    )
    made[id(function)] = fresh  # before what it holds, which may be itself
    for cell, old in zip(cells, function.__closure__ or (), strict=True):
        try:
            cell.cell_contents = _rebind(old.cell_contents, memo, made)
        except ValueError:  # it is empty still
            continue
    if function.__defaults__ is not None:
        fresh.__defaults__ = tuple(_rebind(item, memo, made) for item in function.__defaults__)
    fresh.__kwdefaults__ = function.__kwdefaults__
    fresh.__qualname__ = function.__qualname__
    fresh.__dict__.update(function.__dict__)
    return fresh
