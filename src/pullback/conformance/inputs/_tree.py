"""Tensors inside nested arguments: find them with their path, and put others in their place.

A dataclass is a container of its fields, unless it is a module, or can be called: that reaches its
tensors by itself.

A sparse tensor is a container too: of its values, where its indices say. So what moves are numbers
that it has, and its pattern stays: beside it a derivative is of no concern to whoever works with
sparse tensors.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from pullback.internal._sparse import indices_of, is_sparse, sparse_of, values_of

__all__ = ["field_names", "leaves", "replace", "sparse_source", "tensors", "walk"]


def sparse_source(sparse: torch.Tensor, source: Callable[[torch.Tensor], str], values: str) -> str:
    """Python source for a sparse tensor, of that for its values, and of how tensors are written."""
    indices = ", ".join(map(source, indices_of(sparse)))
    shape = tuple(sparse.shape)
    if sparse.layout is torch.sparse_coo:
        return f"torch.sparse_coo_tensor({indices}, {values}, {shape}, is_coalesced=True)"
    return f"torch.sparse_compressed_tensor({indices}, {values}, {shape}, layout={sparse.layout})"


def _with_values(sparse: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A sparse tensor of the same pattern with other values."""
    if values.shape != values_of(sparse.detach()).shape:
        raise ValueError("a sparse tensor has another number of values")
    return sparse_of(indices_of(sparse), values, sparse.shape, sparse.layout)


def field_names(value: Any) -> list[str]:
    """The names of what a dataclass holds; none of anything else."""
    opaque = isinstance(value, (type, torch.nn.Module)) or callable(value)
    if opaque or not is_dataclass(value):
        return []
    return [field.name for field in fields(value) if hasattr(value, field.name)]


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested dicts, lists, tuples and dataclasses with what reaches it.

    Example:
        >>> list(walk(({"w": 1}, [2, 3]), "args"))
        [("args[0]['w']", 1), ('args[1][0]', 2), ('args[1][1]', 3)]
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from walk(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from walk(item, f"{path}[{index}]")
    elif is_sparse(value):
        yield f"{path}.values()", values_of(value)
    elif names := field_names(value):
        for name in names:
            yield from walk(getattr(value, name), f"{path}.{name}")
    else:
        yield path, value


def leaves(value: Any) -> list[Any]:
    """Every leaf of nested dicts, lists and tuples, in order.

    Example:
        >>> leaves({"a": (1, None), "b": [2]})
        [1, None, 2]
    """
    return [leaf for _, leaf in walk(value)]


def tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor in nested dicts, lists and tuples, in order.

    Example:
        >>> len(tensors((torch.ones(2), {"w": torch.ones(3)}, 0.5)))
        2
    """
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def replace(value: Any, items: Iterator[Any]) -> Any:
    """A copy of nested containers, of the same types, whose tensors come from ``items``, in order.

    What else they hold is shared.

    Example:
        >>> replace(({"w": torch.ones(1)}, 2), iter([torch.zeros(1)]))
        ({'w': tensor([0.])}, 2)
    """
    if isinstance(value, Mapping):
        pairs = {key: replace(item, items) for key, item in value.items()}
        return pairs if type(value) is dict else type(value)(pairs)  # type: ignore[call-arg]
    if isinstance(value, (list, tuple)):
        parts = [replace(item, items) for item in value]
        if hasattr(value, "_fields"):
            return type(value)(*parts)
        return parts if isinstance(value, list) else tuple(parts)
    if is_sparse(value):
        return _with_values(value, next(items))
    if names := field_names(value):
        other = copy.copy(value)
        for name in names:
            object.__setattr__(other, name, replace(getattr(value, name), items))
        return other
    return next(items) if isinstance(value, torch.Tensor) else value
