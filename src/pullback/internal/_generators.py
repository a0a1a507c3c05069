"""Generators of random numbers: those that all code of a process shares, and those handed over."""

import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["PutBack", "rewind_shared", "rewinds"]

PutBack = Callable[[], object]


def rewind_shared() -> list[PutBack]:
    """What puts the generators of Python and numpy back to where they are now."""
    undo: list[PutBack] = [functools.partial(random.setstate, random.getstate())]
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        undo.append(functools.partial(numpy.set_state, numpy.get_state(legacy=False)))
    return undo


def rewinds(value: Any) -> PutBack | None:
    """What puts a generator back to where it is; ``None`` for anything else."""
    if isinstance(value, torch.Generator):
        return functools.partial(value.set_state, value.get_state())
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return functools.partial(value.setstate, value.getstate())
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(value, numpy.Generator):
        return functools.partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    if numpy is not None and isinstance(value, numpy.RandomState):
        return functools.partial(value.set_state, value.get_state(legacy=False))
    return None
