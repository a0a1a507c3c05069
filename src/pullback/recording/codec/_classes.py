"""The classes whose instances are made again from what they hold, without running their code.

A copy of this file is imported into the program that is recorded.
"""

import abc
import dataclasses
import types
from typing import Any

import torch

__all__ = ["is_plain_class", "is_plain_tensor_class", "slots_of"]

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
_STATE = ("__reduce_ex__", "__reduce__", "__setstate__", "__getstate__")
_OF_DATACLASSES = tuple(
    getattr(dataclasses, name, None) for name in ("_dataclass_getstate", "_dataclass_setstate")
)


def is_plain_class(kind: type) -> bool:
    """Whether an instance is its ``__dict__`` and slots alone: remaking one runs no code.

    `torch.nn.Module` counts: its ``__setstate__`` only fills in attributes of old versions. So do
    dataclasses with slots: theirs only go through the fields.
    """
    if type(kind) not in (type, abc.ABCMeta) or kind.__new__ is not object.__new__:
        return False
    defined = {name for base in kind.__mro__[:-1] for name in vars(base)}
    if "__del__" in defined or (kind.__dictoffset__ == 0 and not slots_of(kind)):
        return False
    if "__slots__" in defined and not all(
        base.__flags__ & _HEAP_TYPE for base in kind.__mro__[:-1]
    ):
        return False  # a part of it is made in C, and nobody knows what that holds
    if torch.nn.Module in kind.__mro__:
        return True
    found = [vars(base).get(name) for base in kind.__mro__[:-1] for name in _STATE]
    # By identity: a comparison would be code of the class.
    return all(item is None or any(item is known for known in _OF_DATACLASSES) for item in found)


def is_plain_tensor_class(kind: type) -> bool:
    """Whether a tensor of the class is its numbers and its ``__dict__``: none are made by code."""
    if torch.Tensor not in kind.__mro__:
        return False
    own = kind.__mro__[: kind.__mro__.index(torch.Tensor)]
    if any("__del__" in vars(base) or "__slots__" in vars(base) for base in own):
        return False
    return getattr(kind, "__torch_dispatch__", None) is torch.Tensor.__torch_dispatch__


def slots_of(kind: type) -> dict[str, Any]:
    """The descriptor of each slot of a class; reading and writing one runs no code of the class."""
    return {
        name: value
        for base in reversed(kind.__mro__)
        if base.__flags__ & _HEAP_TYPE
        for name, value in vars(base).items()
        if type(value) is types.MemberDescriptorType
    }
