"""The spaces of numbers, and of values that no gradient flows to."""

import functools
import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any

from pullback.tape._feedback import Feedback
from pullback.tape._mode import OFF, mode
from pullback.tape._registry import Space, register_space, space_of
from pullback.tape._variable import Variable, wrap

__all__ = ["NUMBER", "Constant", "held", "outline"]


class Number(Space):
    """Real numbers; a gradient is a number."""

    name = "number"
    plain = True
    settled = float

    def zero(self) -> Any:
        return wrap(0.0)

    def total(self, gradients: Sequence[Any]) -> Any:
        if mode.get() is OFF and len(gradients) > 2:  # nothing is recorded: add what they hold
            return wrap(functools.reduce(operator.add, [g._data for g in gradients]))
        return functools.reduce(operator.add, gradients)

    def conform(self, gradient: Any, complain: Callable[[str], Exception]) -> Any:
        if isinstance(gradient, Variable) and space_of(gradient._data) is NUMBER:
            return gradient
        raise complain(f"a number Variable was expected, {outline(gradient)} was given")

    def seed(self) -> Any:
        return wrap(1.0)

    def inner(self, gradient: Any, tangent: Any) -> Any:
        return gradient * tangent


class Constant(Space):
    """Values that no gradient flows to: truth values, None, bytes."""

    name = "constant"
    differentiable = False
    plain = True

    def zero(self) -> Any:
        return None


def held(gradient: Any) -> Any:
    """A gradient as a slot of a structured gradient holds it: feedback as it is, else its data."""
    return gradient if isinstance(gradient, Feedback) or gradient is None else gradient._data


def outline(gradient: Any) -> str:
    """What was given in place of a gradient, in a few words."""
    if isinstance(gradient, Feedback):
        return "Feedback"
    if isinstance(gradient, Variable):
        data = gradient._data
        size = f" of {len(data)}" if isinstance(data, list | tuple | dict) else ""
        return f"a {type(data).__name__} Variable{size}"
    if isinstance(gradient, list | tuple | dict):
        return f"a {type(gradient).__name__} of {len(gradient)}"
    return f"the {type(gradient).__name__} {gradient!r:.60}"


NUMBER, CONSTANT = Number(), Constant()

for _kind in (float, int, numbers.Real):
    register_space(_kind, NUMBER)
for _kind in (bool, type(None), bytes):
    register_space(_kind, CONSTANT)
