"""Find the tensors in whatever a module returns, and put others in their place."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

from pullback.errors import UnsupportedError

__all__ = ["replace_tensors", "tensors_in"]


def tensors_in(output: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each floating or complex tensor in tensors, tuples, lists, mappings and dataclasses.

    Yields:
        The path, such as ``"[0].hidden[key]"``, and the tensor.

    Example:
        >>> [path for path, _ in tensors_in({"a": (torch.ones(1), None)})]
        ['[a][0]']
    """
    if isinstance(output, torch.Tensor):
        if output.is_floating_point() or output.is_complex():
            yield path, output
    elif isinstance(output, Mapping):
        for label, value in _labelled(output, path):
            yield from tensors_in(value, label)
    elif isinstance(output, (tuple, list)):
        for index, value in enumerate(output):
            yield from tensors_in(value, f"{path}[{index}]")
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            yield from tensors_in(getattr(output, field.name, None), f"{path}.{field.name}")


def replace_tensors(
    output: Any, replace: Callable[[str, torch.Tensor], torch.Tensor], path: str = ""
) -> Any:
    """Rebuild an output with each floating or complex tensor replaced; the paths of `tensors_in`.

    Returns:
        A new object of the same type, or the same object if there is nothing to replace in it.

    Raises:
        UnsupportedError: a mapping of somebody's own that cannot be made from its items.
    """
    if isinstance(output, torch.Tensor):
        wanted = output.is_floating_point() or output.is_complex()
        return replace(path, output) if wanted else output
    if isinstance(output, Mapping):
        parts = [replace_tensors(value, replace, label) for label, value in _labelled(output, path)]
        return _mapping_like(output, dict(zip(output, parts, strict=True)))
    if isinstance(output, (tuple, list)):
        parts = [
            replace_tensors(value, replace, f"{path}[{index}]")
            for index, value in enumerate(output)
        ]
        return _sequence_like(output, parts)
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        fields = {
            field.name: replace_tensors(
                getattr(output, field.name, None), replace, f"{path}.{field.name}"
            )
            for field in dataclasses.fields(output)
            if hasattr(output, field.name)
        }
        return _dataclass_like(output, fields)
    return output


def _labelled(output: Mapping[Any, Any], path: str) -> Iterator[tuple[str, Any]]:
    """The path of each value of a mapping, in which ``1`` and ``"1"`` are told apart."""
    spelled = [str(key) for key in output]
    for text, (key, value) in zip(spelled, output.items(), strict=True):
        yield f"{path}[{text if spelled.count(text) == 1 else repr(key)}]", value


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
