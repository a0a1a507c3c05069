"""Arguments and results as flat tuples of tensors, and back.

A Function sees the arguments that its author wrote: numbers, tensors, and dicts, lists and
tuples of tensors. The engine sees tensors only. A `Template` is what is left of a structure
when its tensors are taken out.
"""

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pullback.internal.torch import pytree

__all__ = [
    "HOLE",
    "ONE",
    "Template",
    "children",
    "flatten",
    "is_data",
    "is_mask",
    "is_plain",
    "match",
    "may_hold",
    "of_tensors",
    "replaced",
    "unflatten",
]

# A flat structure (the common case) is kept as the tuple itself, a nested one with its spec.
Template = tuple[tuple[Any, ...], Any]

_CONTAINERS = (list, tuple, dict)
_ATOMS = frozenset({int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device})

_STEPS = frozenset({int, bool, type(None), torch.dtype, torch.device, torch.layout, slice})


class _Hole:
    """Marks the place of a tensor in a template."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<tensor>"

    def __deepcopy__(self, memo: Any) -> "_Hole":
        return self  # templates are compared by identity


# Stands for a tensor in a template.
HOLE = _Hole()

# The template of a single tensor.
ONE: Template = ((HOLE,), None)


def flatten(values: tuple[Any, ...]) -> tuple[Template, list[torch.Tensor]]:
    """Take the tensors out of a tuple of values, however deep they are nested."""
    tensors: list[torch.Tensor] = []
    holes: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            holes.append(HOLE)
        elif may_hold(value):
            return _flatten_deep(values)
        else:
            holes.append(value)
    return (tuple(holes), None), tensors


def may_hold(value: Any) -> bool:
    """Whether it may hold tensors: a container, or what its author has registered as one."""
    if isinstance(value, _CONTAINERS):
        return not is_data(value)
    return type(value) in pytree.SUPPORTED_NODES


def _flatten_deep(values: tuple[Any, ...]) -> tuple[Template, list[torch.Tensor]]:
    leaves, spec = pytree.tree_flatten(values)
    holes = tuple(HOLE if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    return (holes, spec), [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def is_data(value: Any) -> bool:
    """Whether a value is made of numbers, text and the like only: it holds no tensor."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is dict:
        return all(map(is_data, value.values()))
    return kind in (tuple, list, torch.Size) and all(map(is_data, value))


def is_plain(value: Any, given: Sequence[Any] = ()) -> bool:
    """Whether nothing that is computed in steps no smaller than a number can hide in a value.

    Whole numbers, flags, dtypes and the like change in steps, and so have no derivative; a number
    that was given as an argument was not computed; a text without a digit spells no number.
    """
    kind = type(value)
    if kind in _STEPS:
        return True
    for each in given:
        if value is each:
            return True
    if kind is str:
        return not any(map(str.isdigit, value))
    if kind is dict:
        return all(is_plain(key, given) and is_plain(entry, given) for key, entry in value.items())
    if kind in (tuple, list, torch.Size):
        return all(is_plain(entry, given) for entry in value)
    if kind is not float:
        return False
    return any(isinstance(each, (int, float)) and each == value for each in given)


def is_mask(value: Any) -> bool:
    """Whether it is a tensor of flags, which have no derivative; whole numbers may hold bits."""
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool


def replaced(value: Any, by: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A value with other tensors in it; the same object where none is another."""
    if isinstance(value, torch.Tensor):
        return by(value)
    if not may_hold(value):
        return value
    leaves, spec = pytree.tree_flatten(value)
    found = [by(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    if all(new is old for new, old in zip(found, leaves, strict=True)):
        return value
    return pytree.tree_unflatten(found, spec)


def of_tensors(template: Template, values: Sequence[Any]) -> list[Any]:
    """Of one value for each leaf, those of the leaves that are tensors."""
    return [value for value, leaf in zip(values, template[0], strict=True) if leaf is HOLE]


def unflatten(template: Template, tensors: Sequence[Any], *other: Any) -> tuple[Any, ...]:
    """Put tensors, or what stands for them, back into the places they were taken from.

    Arguments:
        template: where they were taken from.
        tensors: one for each place.
        other: a value for each place that holds no tensor, instead of what stood there.
    """
    holes, spec = template
    leaves = tensors
    if len(tensors) != len(holes):  # else every leaf is a tensor
        following = iter(tensors)
        rest = holes if not other else other * len(holes)
        leaves = [
            next(following) if leaf is HOLE else value
            for leaf, value in zip(holes, rest, strict=True)
        ]
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
    result: list[Any] = []
    if spec is None:
        for index, (value, hole) in enumerate(zip(values, holes, strict=True)):
            if hole is HOLE:
                if isinstance(value, (dict, list, tuple)):
                    raise complain(index, f"a {type(value).__name__}")
                result.append(value)
        return result
    position = 0
    for index, (value, child) in enumerate(zip(values, children(spec), strict=True)):
        inside = holes[position : position + child.num_leaves]
        position += child.num_leaves
        if any(hole is HOLE for hole in inside):
            leaves = _align(value, child, lambda detail, index=index: complain(index, detail))
            result.extend(leaf for leaf, hole in zip(leaves, inside, strict=True) if hole is HOLE)
    return result


def children(spec: Any) -> list[Any]:
    """The structures of the top-level entries; the name changed between torch versions."""
    return spec.children() if hasattr(spec, "children") else spec.children_specs


def _align(value: Any, spec: Any, complain: Callable[[str], Exception]) -> list[Any]:
    """The leaves of a value in the order of a structure; keys are matched by name."""
    if spec.is_leaf():
        return [value]
    if value is None:
        return [None] * spec.num_leaves
    below = children(spec)
    entries: list[Any] | None = None
    kind = tuple if spec.type is namedtuple else spec.type  # torch has one entry for all of those
    if issubclass(kind, dict):
        if isinstance(value, dict) and _same_keys(value, spec.context):
            entries = [value[key] for key in spec.context]
    elif issubclass(kind, (list, tuple)):
        if isinstance(value, (list, tuple)) and len(value) == len(below):
            entries = list(value)
    elif isinstance(value, kind):
        entries = list(pytree.SUPPORTED_NODES[spec.type].flatten_fn(value)[0])
    if entries is None or len(entries) != len(below):
        raise complain(f"{_outline(value)}, expected {kind.__name__} of {len(below)}")
    return [
        leaf for e, child in zip(entries, below, strict=True) for leaf in _align(e, child, complain)
    ]


def _same_keys(value: dict[Any, Any], keys: Sequence[Any]) -> bool:
    """Whether a dict has the keys, and beyond them nothing but None."""
    beyond = [value[key] for key in value if key not in keys]
    return all(key in value for key in keys) and all(entry is None for entry in beyond)


def _outline(value: Any) -> str:
    if isinstance(value, dict):
        return f"dict with keys {sorted(map(str, value))}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__
