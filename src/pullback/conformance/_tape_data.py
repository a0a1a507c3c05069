"""The data of Variables, whatever its structure: read, changed and compared."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pullback.errors import PullbackError
from pullback.tape import Feedback, Variable

__all__ = [
    "agree", "another", "changed", "drawn", "mix", "move", "numbers_in", "plain_data", "rebuild",
    "require", "variables_in",
]  # fmt: skip


def variables_in(values: Any) -> Iterator[Variable]:
    if isinstance(values, Variable):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from variables_in(value)
    elif isinstance(values, dict):
        yield from variables_in(list(values.values()))


def rebuild(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Variable):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(rebuild(below, change) for below in value)
    if isinstance(value, dict):
        return {key: rebuild(below, change) for key, below in value.items()}
    return value


def require(value: Variable) -> Variable:
    try:
        return Variable(value.data, value.role, requires_grad=True)
    except PullbackError:
        return value


def plain_data(gradient: Any) -> Any:
    """A gradient as data that can be compared: feedback as the texts of its notes."""
    if isinstance(gradient, Feedback):
        return [note.data for note in gradient]
    if isinstance(gradient, Variable):
        return plain_data(gradient.data)
    if isinstance(gradient, dict):
        return {key: plain_data(value) for key, value in gradient.items()}
    return (
        [plain_data(value) for value in gradient]
        if isinstance(gradient, list | tuple)
        else gradient
    )


def numbers_in(data: Any) -> list[float]:
    if isinstance(data, bool) or data is None:
        return []
    if isinstance(data, int | float):
        return [float(data)]
    if isinstance(data, torch.Tensor):
        return data.flatten().tolist() if data.is_floating_point() else []
    if isinstance(data, dict):
        data = list(data.values())
    return (
        [n for value in data for n in numbers_in(value)] if isinstance(data, list | tuple) else []
    )


def changed(data: Any, number: Callable[[float], float], text: Callable[[str], Any]) -> Any:
    """Data of the same structure with other numbers and texts."""
    if isinstance(data, bool) or data is None:
        return data
    if isinstance(data, int | float):
        return number(float(data))
    if isinstance(data, str):
        return text(data)
    if isinstance(data, torch.Tensor):
        values = [number(value) for value in data.flatten().tolist()]
        return torch.tensor(values, dtype=data.dtype, device=data.device).reshape(data.shape)
    if isinstance(data, dict):
        return {key: changed(value, number, text) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(changed(value, number, text) for value in data)
    return data


def drawn(data: Any, draw: random.Random, index: int) -> Any:
    """A gradient for data: numbers drawn at random, and a note to each text."""
    return changed(data, lambda _: draw.gauss(0, 1), lambda _: f"note {index}")


def move(data: Any, changes: Iterator[float]) -> Any:
    """The numbers in data, in order."""
    return changed(data, lambda value: value + next(changes), lambda text: text)


def another(data: Any) -> Any:
    """The same value as a leaf that requires a gradient, if it can."""
    return changed(data, lambda value: value + 1.25, lambda text: f"{text} and more")


def mix(a: Any, b: Any) -> Any:
    """Nested values with each Variable changed."""
    others = iter(numbers_in(b))
    return changed(a, lambda value: 2.5 * value - 1.5 * next(others), lambda text: text)


def agree(a: Any, b: Any) -> bool:
    """The Variables in nested values, in order."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and torch.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)
    if isinstance(a, float | int) and isinstance(b, float | int):
        return a == b or abs(a - b) <= 1e-9 * max(abs(a), abs(b)) or (a != a and b != b)  # noqa: PLR0124
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(agree, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(agree(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b
