"""Dataclasses as pytrees, some of whose fields are constants of the structure."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pullback.internal.torch import pytree

__all__ = ["register_dataclass"]


def register_dataclass(
    cls: type, names: Sequence[str], is_constant: Callable[[str, Any], bool]
) -> None:
    """Let torch's transforms look into a dataclass: its leaves are in the order of the names.

    A field whose name and value are those of a constant is a part of the structure, and no leaf.
    """

    def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        leaves, context = [], []
        known = getattr(value, "_leaves", ())
        for name in names:
            part = getattr(value, name)
            constant = name not in known and is_constant(name, part)
            context.append(part if constant else "leaf")
            leaves += [] if constant else [(pytree.GetAttrKey(name), part)]
        return leaves, tuple(context)

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        leaves, context = flatten_with_keys(value)
        return [part for _, part in leaves], context

    def unflatten(leaves: Iterable[Any], context: tuple[Any, ...]) -> Any:
        remaining = iter(leaves)
        found = object.__new__(cls)
        # Not checked as what is constructed is: a gradient with respect to limits may be negative.
        for name, part in zip(names, context, strict=True):
            object.__setattr__(found, name, next(remaining) if part == "leaf" else part)
        # Where vmap puts a number in the place of a leaf, it is no constant.
        known = tuple(name for name, part in zip(names, context, strict=True) if part == "leaf")
        object.__setattr__(found, "_leaves", known)
        return found

    pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=f"pullback.trajectory.{cls.__name__}",
        flatten_with_keys_fn=flatten_with_keys,
        to_dumpable_context=list,
        from_dumpable_context=_as_tuple,
    )


def _as_tuple(context: Any) -> Any:
    """A context that was written as JSON, which has no tuples."""
    return tuple(map(_as_tuple, context)) if isinstance(context, list) else context
