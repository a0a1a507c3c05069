"""The data of Variables, whatever its structure: read, changed and compared."""

import cmath
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pullback.errors import PullbackError
from pullback.tape import Feedback, Variable

__all__ = [
    "agree", "another", "changed", "drawn", "mix", "move", "numbers_in", "plain_data", "require",
]  # fmt: skip


def require(value: Variable) -> Variable:
    """The same value as a leaf that requires a gradient, if it can."""
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


def _is_tensor(data: Any) -> bool:
    """Whether it is a tensor, where torch is."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(data, torch.Tensor)


def numbers_in(data: Any) -> list[float]:
    """The numbers in data, in order."""
    found: list[float] = []

    def keep(number: float) -> float:
        found.append(number)
        return number

    changed(data, keep, str)
    return found


def changed(data: Any, number: Callable[[float], float], text: Callable[[str], Any]) -> Any:
    """Data of the same structure with other numbers and texts."""
    if isinstance(data, bool) or data is None:
        return data
    if isinstance(data, int | float):
        return number(float(data))
    if isinstance(data, str):
        return text(data)
    if _is_tensor(data) and data.is_floating_point():
        values = [number(value) for value in data.flatten().tolist()]
        return data.new_tensor(values).reshape(data.shape)
    if isinstance(data, dict):
        return {key: changed(value, number, text) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(changed(value, number, text) for value in data)
    return data


def drawn(data: Any, draw: random.Random, index: int) -> Any:
    """A gradient for data: numbers drawn at random, and a note to each text."""
    return changed(data, lambda _: draw.gauss(0, 1), lambda _: f"note {index}")


def move(data: Any, changes: Iterator[float]) -> Any:
    """The data with something added to each number, in order."""
    return changed(data, lambda value: value + next(changes), lambda text: text)


def another(data: Any) -> Any:
    """Data of the same structure that differs in each number and text."""
    return changed(data, lambda value: value + 1.25, lambda text: f"{text} and more")


def mix(a: Any, b: Any) -> Any:
    """The combination 2.5 a - 1.5 b."""
    others = iter(numbers_in(b))
    return changed(a, lambda value: 2.5 * value - 1.5 * next(others), lambda text: text)


def agree(a: Any, b: Any) -> bool:
    """Whether two data are equal, numbers up to rounding."""
    if _is_tensor(a) and _is_tensor(b):
        return a.shape == b.shape and agree(a.flatten().tolist(), b.flatten().tolist())
    if isinstance(a, complex | float | int) and isinstance(b, complex | float | int):
        close = cmath.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
        return close or (cmath.isnan(a) and cmath.isnan(b))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(agree, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(agree(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b
