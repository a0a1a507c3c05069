"""Run rules again and leave everything that they can be seen to write to as it was.

What a rule writes to beside its context and arguments is found from its code: the global names
and closures that it refers to, and those of the functions it calls by name. Lists, dicts, sets,
tensors, generators and attributes among them are put back, and so are the generators of Python and
of numpy; what happens elsewhere (a file, a queue, another process) is not seen.
"""

import collections
import contextlib
import gc
import inspect
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pullback.internal._generators import rewind_shared
from pullback.internal.torch import (
    FakeTensor,
    is_dynamo_tracing,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    version_of,
)
from pullback.tensor._definition import Definition
from pullback.tensor._random import rewind
from pullback.tensor._reach import (
    MEMOISED,
    codes,
    filled_cells,
    functions,
    global_names,
    named,
)

__all__ = ["kept_outside", "names_in_rules", "preserved"]

_DEPTH = 2  # functions that rules call by name, and what these call
_REACHED = 4096  # functions that are looked into at any distance
_MEMBERS = 16  # of a list that are looked at
_OBJECTS = 256  # outside that are looked at
_LARGE = 1 << 20  # elements of a tensor outside that is not copied
_COPIED = (torch.Tensor, torch.nn.Parameter)  # of a tensor without values there is no copy
_plans: weakref.WeakKeyDictionary[Definition, list[Any]] = weakref.WeakKeyDictionary()
Undo = Callable[[], None]


@contextlib.contextmanager
def preserved(definition: Definition) -> Iterator[None]:
    """Put back afterwards what the rules of a Function write to outside of their arguments."""
    undo: list[Undo] = rewind_shared()
    seen: set[int] = set()
    for rule in _functions(definition):
        for cell in filled_cells(rule):
            undo.append(_rebind_cell(cell, cell.cell_contents))
            _remember(cell.cell_contents, undo, seen)
        for value in (*(rule.__defaults__ or ()), *(rule.__kwdefaults__ or {}).values()):
            _remember(value, undo, seen)
        for name in global_names(rule):
            value = rule.__globals__[name]
            undo.append(_rebind(rule.__globals__, name, value))
            _remember(value, undo, seen)
    try:
        yield
    finally:
        for step in reversed(undo):
            step()


def kept_outside(definition: Definition) -> list[Any]:
    """The numbers and tensors that the rules of a Function can reach outside of their arguments.

    Two lists are equal if nothing was written between them. Whole numbers are left out: a count of
    calls takes no part in a derivative.
    """
    return [
        (id(leaf), version_of(leaf)) if isinstance(leaf, torch.Tensor) else repr(leaf)
        for leaf in _outside(definition)
    ]


def _outside(definition: Definition) -> Iterator[Any]:
    seen: set[int] = set()
    for rule in _functions(definition):
        for value in (*named(rule), vars(rule), rule.__defaults__, rule.__kwdefaults__):
            yield from _leaves(value, seen)


def _leaves(value: Any, seen: set[int]) -> Iterator[Any]:
    if isinstance(value, (float, complex, torch.Tensor)):
        yield value
    elif id(value) not in seen:
        seen.add(id(value))
        for member in _members(value):
            yield from _leaves(member, seen)


def _members(value: Any) -> list[Any]:
    """What a container, a memoised function or an object of a program holds."""
    if isinstance(value, (types.ModuleType, torch.nn.Module)):
        return []
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple, set, collections.deque)):
        return list(value)
    if isinstance(value, MEMOISED):
        return _memory(value)
    if not isinstance(value, type) and not hasattr(value, "__dict__"):
        return []
    if getattr(value, "__module__", "").partition(".")[0] in ("torch", "pullback"):
        return []
    return [member for name, member in vars(value).items() if not name.startswith("__")]


def _memory(function: Any) -> list[Any]:
    """What `functools.lru_cache` keeps for a function, as far as it may hold tensors."""
    kinds = (torch.Tensor, list, tuple, dict)
    return [value for value in gc.get_referents(function) if isinstance(value, kinds)]


def names_in_rules(definition: Definition, *, far: bool = False) -> set[str]:
    """All names that the rules and the functions they call refer to.

    Arguments:
        definition: what was read off the Function.
        far: look into functions at any distance, and into those of modules and objects.
    """
    waiting = list(_functions(definition))
    found = dict.fromkeys(waiting)
    names: set[str] = set()
    while waiting:
        rule = waiting.pop()
        own = {name for code in codes(rule.__code__) for name in code.co_names}
        names |= own
        for value in named(rule) if far and len(found) < _REACHED else ():
            owner = value if isinstance(value, (type, types.ModuleType)) else type(value)
            members = [inspect.getattr_static(owner, name, None) for name in own]
            for member in (value, *members):
                function = getattr(member, "__func__", member)
                new = isinstance(function, types.FunctionType) and function not in found
                if new and _is_not_of_torch(function):
                    found[function] = None
                    waiting.append(function)
    return names


def _functions(definition: Definition) -> list[types.FunctionType]:
    if definition not in _plans:
        rules = (definition.forward, definition.setup_context, definition.backward, definition.jvp)
        given = [rule for rule in rules if rule is not None]
        _plans[definition] = functions(given, _is_not_of_torch, _DEPTH)
    return _plans[definition]


def _is_not_of_torch(function: types.FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] != "torch"


def _remember(value: Any, undo: list[Undo], seen: set[int]) -> None:
    if id(value) in seen or isinstance(value, (types.ModuleType, types.BuiltinFunctionType)):
        return
    wrapped = is_functorch_wrapped_tensor, is_legacy_batchedtensor
    if isinstance(value, torch.Tensor) and any(is_one(value) for is_one in wrapped):
        return  # of a transform, which may have ended
    seen.add(id(value))
    inside: list[Any] = []
    rewound = rewind(value)
    if rewound is not None:
        undo.append(rewound)
    elif isinstance(value, torch.Tensor):
        if value.numel() <= _LARGE and type(value) in _COPIED and not is_dynamo_tracing():
            undo.append(_restore(value, version_of(value), value.detach().clone()))
    elif isinstance(value, type):
        attributes = {k: v for k, v in vars(value).items() if not k.startswith("__")}
        undo.append(_reset(value, attributes))
        inside = [getattr(v, "__func__", v) for v in attributes.values()]
    elif isinstance(value, (list, collections.deque)):
        undo.append(_refill(value, list(value)))
        inside = list(value)[:_MEMBERS]
    elif isinstance(value, (dict, set)):
        undo.append(_replace(value, value.copy()))
        inside = list(value.values())[:_MEMBERS] if isinstance(value, dict) else []
    elif isinstance(value, MEMOISED):
        undo.append(_forget(value))
    elif hasattr(value, "__dict__") and not isinstance(value, torch.nn.Module):
        undo.append(_replace(vars(value), dict(vars(value))))
        inside = list(vars(value).values())
    for member in inside if len(seen) < _OBJECTS else ():
        if isinstance(member, (list, dict, set, collections.deque)) or hasattr(member, "__dict__"):
            _remember(member, undo, seen)


def _forget(function: Any) -> Undo:
    def undo() -> None:
        if any(isinstance(leaf, FakeTensor) for leaf in _leaves(function, set())):
            function.cache_clear()

    return undo


def _rebind(space: dict[str, Any], name: str, value: Any) -> Undo:
    return lambda: space.__setitem__(name, value)


def _rebind_cell(cell: Any, value: Any) -> Undo:
    return lambda: setattr(cell, "cell_contents", value)


def _refill(value: Any, before: list[Any]) -> Undo:
    def undo() -> None:
        if len(value) != len(before) or any(a is not b for a, b in zip(value, before, strict=True)):
            value.clear()
            value.extend(before)

    return undo


def _replace(value: Any, before: Any) -> Undo:
    def undo() -> None:
        if isinstance(value, set):
            same = value == before
        else:
            same = list(value) == list(before) and all(value[k] is before[k] for k in before)
        if not same:  # other threads may be using it
            value.clear()
            value.update(before)

    return undo


def _reset(kind: type, before: dict[str, Any]) -> Undo:
    def undo() -> None:
        for name in [name for name in vars(kind) if not name.startswith("__")]:
            if name not in before:
                delattr(kind, name)
        for name, value in before.items():
            if vars(kind).get(name) is not value:
                setattr(kind, name, value)

    return undo


def _restore(tensor: torch.Tensor, version: int, before: torch.Tensor) -> Undo:
    def undo() -> None:
        if version_of(tensor) != version:
            with torch.no_grad():
                tensor.resize_(before.shape).copy_(before)

    return undo
