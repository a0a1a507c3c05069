"""Arguments and results as flat tuples of tensors, and back.

A Function sees the arguments that its author wrote: numbers, tensors, and dicts, lists and
tuples of tensors. The engine sees tensors only. A `Template` is what is left of a structure
when its tensors are taken out.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["Template", "flatten", "match", "unflatten", "without_values"]

# A flat structure (the common case) is kept as the tuple itself, a nested one with its spec.
Template = tuple[tuple[Any, ...], Any]

_CONTAINERS = (list, tuple, dict)


class _Hole:
    """Marks the place of a tensor in a template."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<tensor>"


_HOLE = _Hole()


def flatten(values: tuple[Any, ...]) -> tuple[Template, list[torch.Tensor]]:
    """Take the tensors out of a tuple of values, however deep they are nested."""
    spec = None
    leaves: Sequence[Any] = values
    for value in values:
        if isinstance(value, _CONTAINERS):
            leaves, spec = pytree.tree_flatten(values)
            break
    tensors: list[torch.Tensor] = []
    holes: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
            holes.append(_HOLE)
        else:
            holes.append(leaf)
    return (tuple(holes), spec), tensors


def unflatten(template: Template, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Put tensors, or what stands for them, back into the places they were taken from."""
    holes, spec = template
    leaves = tensors
    if len(tensors) != len(holes):
        following = iter(tensors)
        leaves = [next(following) if leaf is _HOLE else leaf for leaf in holes]
    if spec is None:
        return tuple(leaves)
    return pytree.tree_unflatten(leaves, spec)


def match(
    template: Template, values: Sequence[Any], complain: Callable[[int, str], Exception]
) -> list[Any]:
    """Read one value per tensor of a template out of values of the same structure.

    A value of ``None`` stands for ``None`` at every tensor below it. Values at places that
    hold no tensor are ignored.

    Arguments:
        template: where the tensors are.
        values: one value per top-level entry of the template.
        complain: makes the error for the entry that does not have the expected structure.
    """
    holes, spec = template
    if spec is None:
        return [value for value, hole in zip(values, holes, strict=True) if hole is _HOLE]
    result: list[Any] = []
    position = 0
    for index, (value, child) in enumerate(zip(values, spec.children(), strict=True)):
        inside = holes[position : position + child.num_leaves]
        position += child.num_leaves
        if not any(hole is _HOLE for hole in inside):
            continue
        if value is None:
            leaves: list[Any] = [None] * len(inside)
        else:
            leaves = _broadcast_none(value, child, index, complain)
        result.extend(leaf for leaf, hole in zip(leaves, inside, strict=True) if hole is _HOLE)
    return result


def _broadcast_none(
    value: Any, spec: Any, index: int, complain: Callable[[int, str], Exception]
) -> list[Any]:
    leaves, given = pytree.tree_flatten(value, is_leaf=lambda node: node is None)
    if len(leaves) != spec.num_leaves or given.type is not spec.type:
        raise complain(index, f"{given} with {len(leaves)} leaves, expected {spec}")
    return leaves


def without_values(template: Template, value: Any) -> Template:
    """The template with another value at each place that holds no tensor."""
    holes, spec = template
    if holes.count(_HOLE) == len(holes):
        return template
    return tuple(_HOLE if leaf is _HOLE else value for leaf in holes), spec
