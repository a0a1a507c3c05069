"""What is known of an operation that a rule calls: its name, its origin, its derivative."""

from typing import Any

from pullback.internal.torch import OpOverload, OpOverloadPacket, is_of_custom_operators, schema_of

__all__ = ["is_of_torch", "is_unknown", "name_of", "with_argument", "written_by"]

_NOT_IMPLEMENTED = ("NotImplemented", "Error")


def name_of(func: Any) -> str:
    name = getattr(func, "__name__", None) or str(func)
    return name.rsplit(".", maxsplit=1)[0] if isinstance(func, OpOverload) else name


def is_of_torch(func: Any) -> bool:
    """Whether torch itself defines a function; the name of a custom operator says nothing."""
    module = getattr(func, "__module__", None) or getattr(func, "__objclass__", func).__module__
    return module.partition(".")[0] == "torch" and not is_of_custom_operators(module)


def is_unknown(node: Any) -> bool:
    return any(sign in node.name() for sign in _NOT_IMPLEMENTED)


def with_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str, value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with another value for one that stands at a place or has a name."""
    if len(args) > place:
        return (*args[:place], value, *args[place + 1 :]), kwargs
    return args, {**kwargs, name: value}


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
