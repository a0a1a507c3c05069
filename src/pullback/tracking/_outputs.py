"""What a module returns: the tensors in it, others in their place, and what computes later."""

import copy
import dataclasses
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    MutableMapping,
)
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from pullback.errors import UnsupportedError

__all__ = ["deferred_in", "is_floating", "replace_tensors", "tensors_in"]


def is_floating(value: Any) -> bool:
    """Whether something is a tensor of real or complex numbers."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def tensors_in(output: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each floating or complex tensor in tensors, tuples, lists, mappings and dataclasses.

    Yields:
        The path, such as ``"[0].hidden[key]"``, and the tensor.
    """
    if is_floating(output):
        yield path, output
    for _, label, value in _parts(output, path):
        yield from tensors_in(value, label)


def replace_tensors(
    output: Any, replace: Callable[[str, torch.Tensor], torch.Tensor], path: str = ""
) -> Any:
    """Rebuild an output with each floating or complex tensor replaced; the paths of `tensors_in`.

    Returns:
        A new object of the same type, or the same object if there is nothing to replace in it.
    """
    if is_floating(output):
        return replace(path, output)
    parts = {
        key: replace_tensors(value, replace, label) for key, label, value in _parts(output, path)
    }
    if isinstance(output, Mapping):
        return _mapping_like(output, parts)
    if isinstance(output, (tuple, list)):
        return _sequence_like(output, list(parts.values()))
    return _dataclass_like(output, parts) if parts else output


def deferred_in(output: Any) -> Any:
    """What computes later in an output: a generator, coroutine, function or module; or ``None``."""
    if isinstance(output, type):
        return None
    if callable(output) or isinstance(output, Iterator | AsyncIterator | Awaitable):
        return output
    is_set = isinstance(output, AbstractSet)
    parts = output if is_set else [value for _, _, value in _parts(output, "")]
    return next((found for found in map(deferred_in, parts) if found is not None), None)


def _parts(output: Any, path: str) -> list[tuple[Any, str, Any]]:
    """The key, path and value of each part of a container, in which ``1`` and ``"1"`` differ."""
    if isinstance(output, Mapping):
        texts = [str(key) for key in output]
        names = [  # without list.count, which Dynamo (2.7) does not follow
            text if sum(text == each for each in texts) == 1 else repr(key)
            for text, key in zip(texts, output, strict=True)
        ]
        return [
            (key, f"{path}[{name}]", value)
            for name, (key, value) in zip(names, output.items(), strict=True)
        ]
    if isinstance(output, (tuple, list)):
        return [(index, f"{path}[{index}]", value) for index, value in enumerate(output)]
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        names = [field.name for field in dataclasses.fields(output) if hasattr(output, field.name)]
        return [(name, f"{path}.{name}", getattr(output, name)) for name in names]
    return []


def _mapping_like(output: Any, items: dict[Any, Any]) -> Any:
    if type(output) is dict:
        return items
    if dataclasses.is_dataclass(output):
        # Hugging Face's outputs are mappings and dataclasses at once, made from keywords.
        return type(output)(**items)  # pyrefly: ignore
    if isinstance(output, MutableMapping):
        filled = copy.copy(output)  # a defaultdict is not made from its items
        for key, value in items.items():
            filled[key] = value
        return filled
    try:
        return type(output)(items)
    except TypeError as error:
        raise UnsupportedError(
            f"A {type(output).__name__} cannot be made from its items.",
            given=f"TypeError: {error}",
            expected="dictionaries, tuples, lists and dataclasses",
        ) from error


def _sequence_like(output: Any, parts: list[Any]) -> Any:
    kind = type(output)
    if hasattr(output, "_fields"):
        return kind(*parts)
    if kind in (tuple, list) or hasattr(output, "n_sequence_fields"):  # as torch.max returns
        return kind(parts)
    if all(old is new for old, new in zip(output, parts, strict=True)):
        return output  # a torch.Size, for one, is not made like the others
    # Whatever its own __init__ and __new__ ask for.
    filled = copy.copy(output) if isinstance(output, list) else tuple.__new__(kind, parts)
    if isinstance(output, list):
        filled[:] = parts
    else:
        getattr(filled, "__dict__", {}).update(getattr(output, "__dict__", {}))
    return filled


def _dataclass_like(output: Any, fields: dict[str, Any]) -> Any:
    if torch.compiler.is_compiling():  # which does not follow copies
        made = {field.name for field in dataclasses.fields(output) if field.init}
        return dataclasses.replace(output, **{name: fields[name] for name in made})
    filled = copy.copy(output)  # whatever its __init__ asks for, and frozen or not
    for name, value in fields.items():
        object.__setattr__(filled, name, value)
    return filled
