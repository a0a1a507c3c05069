"""Dataclasses as pytrees, some of whose fields are constants of the structure."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pullback.internal.torch import pytree

__all__ = ["register_dataclass"]


def register_dataclass(
    cls: type, names: Sequence[str], is_constant: Callable[[str, Any], bool]
) -> None:
    """Let torch's transforms look into a dataclass.

    Arguments:
        cls: the dataclass.
        names: its fields, in the order in which its leaves are.
        is_constant: whether a field with such a value is a part of the structure, and no leaf.
    """

    def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        parts = [(name, getattr(value, name)) for name in names]
        leaves = [
            (pytree.GetAttrKey(name), part) for name, part in parts if not is_constant(name, part)
        ]
        return leaves, tuple(part if is_constant(name, part) else "leaf" for name, part in parts)

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        leaves, context = flatten_with_keys(value)
        return [part for _, part in leaves], context

    def unflatten(leaves: Iterable[Any], context: tuple[Any, ...]) -> Any:
        remaining = iter(leaves)
        parts = (next(remaining) if part == "leaf" else part for part in context)
        return cls(**dict(zip(names, parts, strict=True)))

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
