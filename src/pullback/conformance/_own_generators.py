"""The generators of random numbers that a Function keeps for itself, which no seed reaches.

They are found where code reaches them by name: on its class, among the global variables that its
methods name, in closures, and within containers and objects there.
"""

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import torch

__all__ = ["PutBack", "own_generators", "rewinds"]

PutBack = Callable[[], object]
_DEPTH = 7
_MOST = 20_000  # whatever holds more is no place for a generator


def own_generators(target: Any) -> list[PutBack]:
    """What puts each generator that a Function or callable reaches by itself back to where it is.

    Example:
        >>> source = torch.Generator().manual_seed(3)
        >>> def noise(x):
        ...     return torch.rand(x.shape, generator=source)
        >>> [put_back] = own_generators(noise)
        >>> first = noise(torch.ones(2))
        >>> _ = put_back()
        >>> bool((first == noise(torch.ones(2))).all())
        True
    """
    found: list[PutBack] = []
    seen: set[int] = set()
    queue = [(target, _DEPTH)]
    while queue and len(seen) < _MOST:
        value, depth = queue.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        put_back = rewinds(value)
        if put_back is not None:
            found.append(put_back)
        elif depth:
            queue.extend((child, depth - 1) for child in _children(value))
    return found


def rewinds(value: Any) -> PutBack | None:
    """What puts a generator back to where it is; ``None`` for anything else."""
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return partial(value.setstate, value.getstate())
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(value, numpy.Generator):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    if numpy is not None and isinstance(value, numpy.RandomState):
        return partial(value.set_state, value.get_state(legacy=False))
    return None


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, FunctionType):
        names = value.__code__.co_names
        yield from (value.__globals__[name] for name in names if name in value.__globals__)
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue
    elif isinstance(value, (staticmethod, classmethod)):
        yield value.__func__
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    elif isinstance(value, type):
        for kind in value.__mro__:
            if not _is_librarys(kind):
                yield from vars(kind).values()
    elif not _is_librarys(type(value)):
        yield from (*getattr(value, "__dict__", {}).values(), type(value))


def _is_librarys(kind: type) -> bool:
    room = (kind.__module__ or "").partition(".")[0]
    return room in ("builtins", "torch", "numpy", "types", "pullback", "typing", "functools")
