"""`completed`: all Functions of a package completed for a while, for any number of callers."""

import contextlib
import importlib
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.tensor._complete import complete
from pullback.tensor._function import Function

__all__ = ["completed"]

_base: Any = torch.autograd.Function
_MISSING = object()
# In Python up to torch 2.13, in C++ from 2.14 on.
_METHODS = (types.MethodType, types.BuiltinMethodType)


@contextlib.contextmanager
def completed(package: types.ModuleType | str) -> Iterator[list[type[Function]]]:
    """Complete every Function of a module or package while the context is active.

    Calls of ``F.apply`` inside and outside the package run the completed Function, also through
    names that the package bound to ``F.apply`` when it was imported. A subclass of ``F`` runs its
    own rules, completed too. Contexts may overlap, in one thread or in several; when the last one
    ends, all is as before.

    Arguments:
        package: a module, or its name. Submodules that are imported already are included; others
            are not imported, since that may run anything: import what is wanted before.

    Yields:
        The completed Functions. Functions that cannot be completed are left as they are.

    Raises:
        ArgumentError: the module cannot be imported.
        ArgumentTypeError: it is no module.

    Example:
        >>> import torch, types
        >>> module = types.ModuleType("square")
        >>> with completed(module) as functions:
        ...     functions
        []
    """
    modules = _modules(package)
    results: dict[Any, type[Function]] = {}
    for found in _functions(modules):
        with contextlib.suppress(UnsupportedError):
            results[found] = complete(found)
    layers = [(original, "apply", _Apply()) for original in results]
    layers += [
        (module, name, results[original].apply)
        for module in modules
        for name, original in _bound(module)
        if original in results
    ]
    try:
        for owner, name, value in layers:
            _put(owner, name, value)
        yield list(results.values())
    finally:
        for owner, name, _ in layers:
            _take_off(owner, name)


class _Apply:
    """What stands for `apply` in a class: it completes the class that it is read from."""

    completes = True  # asked by `has_own_apply`

    def __get__(self, instance: Any, owner: Any) -> Any:
        return vars(Function)["apply"].__get__(None, complete(owner))


@dataclass
class _Layer:
    """A name with another value, for as long as any context wants it."""

    owner: Any  # held, so that its id stays its own
    before: Any
    value: Any
    count: int = 0


_layers: dict[tuple[int, str], _Layer] = {}
_lock = threading.RLock()


def _put(owner: Any, name: str, value: Any) -> None:
    with _lock:
        key = id(owner), name
        if key not in _layers:
            before = vars(owner).get(name, _MISSING)
            _layers[key] = _Layer(owner, before, value)
            setattr(owner, name, value)
        _layers[key].count += 1


def _take_off(owner: Any, name: str) -> None:
    with _lock:
        layer = _layers.get((id(owner), name))
        if layer is None:
            return
        layer.count -= 1
        if layer.count:
            return
        del _layers[id(owner), name]
        if vars(owner).get(name) is not layer.value:
            return  # somebody has given it another value meanwhile
        if layer.before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, layer.before)


def _modules(package: types.ModuleType | str) -> list[types.ModuleType]:
    if isinstance(package, str):
        try:
            package = importlib.import_module(package)
        except (Exception, SystemExit) as error:  # a script may end the process when it is imported
            raise ArgumentError(
                f"The module {package!r} cannot be imported: {type(error).__name__}: {error}.",
                mend="Install it, or pass a module that is imported.",
            ) from error
    if not isinstance(package, types.ModuleType):
        raise ArgumentTypeError(
            "completed takes a module.", given=repr(package), expected="a module, or its name"
        )
    prefix = package.__name__ + "."
    below = [module for name, module in list(sys.modules.items()) if name.startswith(prefix)]
    return [package, *(m for m in below if isinstance(m, types.ModuleType) and m is not package)]


def _functions(modules: list[types.ModuleType]) -> list[Any]:
    roots = {module.__name__.partition(".")[0] for module in modules}
    found: dict[Any, None] = {}
    for module in modules:
        for value in list(vars(module).values()):
            if (
                isinstance(value, type)
                and issubclass(value, _base)
                and not issubclass(value, Function)
                and value.__module__.partition(".")[0] in roots
                and value.forward is not _base.forward
            ):
                found[value] = None
    return list(found)


def _bound(module: types.ModuleType) -> list[tuple[str, Any]]:
    """The names of a module that are bound to the `apply` of a Function, and which Function."""
    found = []
    with _lock:
        for name, value in list(vars(module).items()):
            layer = _layers.get((id(module), name))
            given = layer.before if layer is not None and layer.value is value else value
            function = getattr(given, "__self__", None)
            applies = isinstance(given, _METHODS) and given.__name__ == "apply"
            if applies and isinstance(function, type) and issubclass(function, _base):
                found.append((name, function))
    return found
