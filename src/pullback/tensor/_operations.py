"""What is known of an operation that a rule calls: its name, origin, arguments, derivative."""

from typing import Any

import torch

from pullback.internal.torch import (
    OpOverload,
    OpOverloadPacket,
    is_of_custom_operators,
    is_view,
    pytree,
    schema_of,
)

__all__ = [
    "ends_in_place",
    "is_of_torch",
    "is_unknown",
    "name_of",
    "pure_form",
    "tensors_in",
    "with_argument",
    "writes_into_a_view",
    "written_by",
]

_NO_TREE = frozenset((bool, int, float, str, torch.device, torch.dtype, type(None)))
_AUGMENTED = frozenset(
    f"__i{operator}__"
    for operator in (
        *("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
)
# These change what a tensor is, and none of its values.
_OF_ITSELF = frozenset(
    f"{name}_"
    for name in (
        *("as_strided", "detach", "rename", "squeeze", "swapaxes", "swapdims", "t"),
        *("transpose", "unsqueeze", "resize_as", "resize"),
    )
)


def name_of(func: Any) -> str:
    name = getattr(func, "__name__", None) or str(func)
    return name.rsplit(".", maxsplit=1)[0] if isinstance(func, OpOverload) else name


def is_of_torch(func: Any) -> bool:
    """Whether torch itself defines a function; the name of a custom operator says nothing."""
    module = getattr(func, "__module__", None) or getattr(func, "__objclass__", func).__module__
    return module.partition(".")[0] == "torch" and not is_of_custom_operators(module)


def tensors_in(*values: Any) -> list[torch.Tensor]:
    """The tensors among arguments or results, most of which are no trees."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) not in _NO_TREE:
            found += [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
    return found


def is_unknown(node: Any) -> bool:
    """Whether a node stands for a derivative that torch does not have."""
    return node.name() in _UNKNOWN


_UNKNOWN = {
    f"torch::autograd::{name}"
    for name in ("NotImplemented", "WarnNotImplemented", "Error", "DelayedError")
}


def with_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str, value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with another value for one that stands at a place or has a name."""
    if len(args) > place:
        return (*args[:place], value, *args[place + 1 :]), kwargs
    return args, {**kwargs, name: value}


def ends_in_place(name: str) -> bool:
    """Whether torch's way to name a function says that it changes a tensor in place."""
    return name.endswith("_") and not name.endswith("__")


def pure_form(func: Any) -> Any:
    """The function that returns what another one writes into a tensor of the same shape, if any."""
    name = name_of(func)
    if name in _AUGMENTED:
        return getattr(torch.Tensor, name.replace("__i", "__", 1), None)
    if not ends_in_place(name) or name in _OF_ITSELF:
        return None
    pure = getattr(torch.Tensor, name.rstrip("_"), None)
    return pure if callable(pure) else None


def writes_into_a_view(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a function changes a part of a tensor in place."""
    name = name_of(func)
    if name == "__setitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(part, (int, slice)) for part in index)
    written = name in _AUGMENTED or ends_in_place(name)
    return written and bool(args) and isinstance(args[0], torch.Tensor) and is_view(args[0])


def written_by(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that a custom operator writes to, by its schema."""
    if isinstance(func, OpOverloadPacket):
        overloads = [getattr(func, name) for name in func.overloads()]
    else:
        overloads = [func] if isinstance(func, OpOverload) else []
    return [
        args[place] if place < len(args) else kwargs.get(argument.name)
        for overload in overloads
        for place, argument in enumerate(schema_of(overload).arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
