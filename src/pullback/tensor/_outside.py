"""What rules read that is no argument, watched so that compiled code can follow it.

A graph that takes a Function whole has run its rules once: a number of a module, a closure, a
class or an object is a constant in it. What the rules refer to by name is therefore looked up when
the graph is made, and a guard of the graph compares it before each run.
"""

import collections
import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pullback.internal.torch import version_of
from pullback.tensor._definition import Definition, rules_of
from pullback.tensor._reach import codes, global_names

__all__ = ["watch"]

_MISSING = object()
_LARGE = 4096  # entries of a container that are compared
_OBJECTS = 64  # that attributes are looked up on
_ATOMS = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)
_FOREIGN = frozenset({"torch", "numpy", "pullback", *sys.stdlib_module_names}) - {"__main__"}
Read = Callable[[], Any]


def watch(function: Callable[[], Any], definition: Definition) -> Callable[[], Callable[[], bool]]:
    """Look at the rules of a Function and all that they read before these are traced.

    Called afterwards, the result gives a function that tells whether all is still so. What has
    changed in between the rules have written themselves, and it is left out.

    Arguments:
        function: gives the class, while it is alive.
        definition: what was read off it.
    """
    rules = definition.forward, definition.setup_context, definition.backward, definition.jvp
    walk = _Walk(definition.forward.__module__ or "")
    for rule in rules:
        if rule is not None:
            walk.lead_on(inspect.unwrap(rule))
            walk.lead_on(rule)
    walk.finish()
    found = walk.found

    def traced() -> Callable[[], bool]:
        kept = [(read, before) for read, before in found if _snapshot(read()) == before]

        def unchanged() -> bool:
            owner = function()
            if owner is not None and rules_of(owner) != definition.rules:
                return False
            return all(_snapshot(read()) == before for read, before in kept)

        return unchanged

    return traced


class _Walk:
    """Follows names to values, and the functions and objects among these to what they name."""

    def __init__(self, module: str) -> None:
        self.own = module.partition(".")[0]
        self.found: list[tuple[Read, Any]] = []
        self.functions: dict[types.FunctionType, None] = {}
        self.objects: dict[int, Any] = {}
        self.names: set[str] = set()
        self.counts: set[str] = set()  # that the code itself binds

    def finish(self) -> None:
        """Look up what all functions name, and all that these lead to."""
        done: set[Any] = set()
        while True:
            before = len(done)
            for function in [f for f in self.functions if f not in done]:
                done.add(function)
                self._read(function)
            pairs = [(key, name) for key in self.objects for name in sorted(self.names)]
            for key, name in [pair for pair in pairs if pair not in done]:
                done.add((key, name))
                self._attribute(self.objects[key], name)
            if len(done) == before:
                return

    def _read(self, function: types.FunctionType) -> None:
        for code in codes(function.__code__):
            self.names.update(code.co_names)  # and what getattr may be asked for
            self.names.update(c for c in code.co_consts if isinstance(c, str) and c.isidentifier())
            self.counts.update(
                step.argval for step in dis.get_instructions(code)
                if step.opname in ("STORE_ATTR", "STORE_GLOBAL")
            )  # fmt: skip
        for cell in function.__closure__ or ():
            self._visit(functools.partial(getattr, cell, "cell_contents", _MISSING))
        for name in global_names(function):
            self._visit(functools.partial(function.__globals__.get, name, _MISSING), name)

    def _attribute(self, value: Any, name: str) -> None:
        static = inspect.getattr_static(value, name, _MISSING)
        if isinstance(static, property):
            self.lead_on(static.fget)
        elif isinstance(static, (types.FunctionType, staticmethod, classmethod)):
            self._visit(functools.partial(inspect.getattr_static, value, name, _MISSING))
        elif static is not _MISSING and not isinstance(static, types.GetSetDescriptorType):
            self._visit(functools.partial(getattr, value, name, _MISSING), name)

    def _visit(self, read: Read, name: str = "") -> None:
        value = read()
        if self._is_foreign(value) or (name in self.counts and type(value) is int):
            return
        self.found.append((read, _snapshot(value)))
        self.lead_on(value)

    def lead_on(self, value: Any) -> None:
        """Follow a function, what a container holds, or the attributes of an object."""
        if isinstance(value, (staticmethod, classmethod, types.MethodType)):
            self.lead_on(value.__func__)
            value = getattr(value, "__self__", None)
        if isinstance(value, functools.partial):
            self.lead_on((value.func, *value.args, *value.keywords.values()))
        elif isinstance(value, types.FunctionType):
            if not self._is_foreign(value):
                self.functions[value] = None
        elif isinstance(value, (dict, *_CONTAINERS)):
            for member in _members(value):
                self.lead_on(member)
        elif (
            not isinstance(value, (*_ATOMS, torch.Tensor))
            and not self._is_foreign(value)
            and len(self.objects) < _OBJECTS
        ):
            self.objects[id(value)] = value

    def _is_foreign(self, value: Any) -> bool:
        """Whether a module, a class or a function is of another package, that is not changed."""
        if isinstance(value, types.ModuleType):
            name = value.__name__
        elif isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            name = value.__module__ or "builtins"
        else:
            return False
        package = name.partition(".")[0]
        return package in _FOREIGN or (package != self.own and _is_installed(package))


class _Itself:
    """An object that is compared by identity, kept so that its identity stays its own."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]


def _snapshot(value: Any) -> Any:
    if isinstance(value, _ATOMS):
        return type(value), repr(value)
    if isinstance(value, torch.Tensor):
        return _Itself(value), version_of(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        return value.shape, str(value.dtype), value.tobytes()
    if isinstance(value, functools.partial):
        return _snapshot((value.func, value.args, value.keywords))
    if isinstance(value, types.MethodType):
        return _Itself(value.__func__), _Itself(value.__self__)
    if isinstance(value, (dict, *_CONTAINERS)):
        members = _members(value)
        keys = list(value) if isinstance(value, dict) else None
        return type(value), len(value), keys, [_snapshot(member) for member in members]
    return _Itself(value)


def _members(value: Any) -> list[Any]:
    every: Iterator[Any] = iter(value.values() if isinstance(value, dict) else value)
    return list(every) if len(value) <= _LARGE else []


@functools.cache
def _is_installed(package: str) -> bool:
    spec = getattr(sys.modules.get(package), "__spec__", None)
    return any(
        f"{kind}-packages" in (getattr(spec, "origin", None) or "") for kind in ("site", "dist")
    )
