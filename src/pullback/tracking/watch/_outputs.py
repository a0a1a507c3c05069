"""Find the tensors in whatever a module returns, and put others in their place."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

__all__ = ["replace_tensors", "tensors_in"]


def tensors_in(output: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each floating or complex tensor in tensors, tuples, lists, mappings and dataclasses.

    Arguments:
        output: what a module returned; anything else in it is passed over.
        path: the prefix of the paths.

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
        for key, value in output.items():
            yield from tensors_in(value, f"{path}[{key}]")
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

    Arguments:
        output: what a module returned. It is not changed.
        replace: gives the new tensor for a path and the old one.
        path: the prefix of the paths.

    Returns:
        A new object of the same type, or the same object if there is nothing to replace in it.
    """
    if isinstance(output, torch.Tensor):
        wanted = output.is_floating_point() or output.is_complex()
        return replace(path, output) if wanted else output
    if isinstance(output, Mapping):
        items = {
            key: replace_tensors(value, replace, f"{path}[{key}]") for key, value in output.items()
        }
        if type(output) is dict:
            return items
        if dataclasses.is_dataclass(output):
            # Hugging Face's outputs are mappings and dataclasses at once, made from keywords.
            return type(output)(**items)  # pyrefly: ignore
        if not isinstance(output, MutableMapping):
            return type(output)(items)  # pyrefly: ignore
        filled = copy.copy(output)  # a defaultdict is not made from its items
        for key, value in items.items():
            filled[key] = value
        return filled
    if isinstance(output, (tuple, list)):
        parts = [
            replace_tensors(value, replace, f"{path}[{index}]")
            for index, value in enumerate(output)
        ]
        return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        fields = [field.name for field in dataclasses.fields(output) if field.init]
        return dataclasses.replace(
            output,
            **{
                name: replace_tensors(getattr(output, name), replace, f"{path}.{name}")
                for name in fields
            },
        )
    return output
