"""A Function of the tape with its arguments, as the clauses look at it, and the data of both."""

import cmath
import copy
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pullback.errors import PullbackError
from pullback.tape import Feedback, Function, Variable, grad
from pullback.tape import _layout as layouts

__all__ = [
    "Breach",
    "Gradients",
    "Probe",
    "Skip",
    "Trial",
    "agree",
    "another",
    "changed",
    "drawn",
    "mix",
    "move",
    "numbers_in",
    "plain_data",
    "require",
]


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
    if isinstance(gradient, list | tuple):
        return [plain_data(value) for value in gradient]
    return gradient


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


Gradients = list[Any]


class Breach(Exception):
    """A clause is broken."""


class Skip(Exception):
    """A clause does not apply."""


@dataclass(frozen=True)
class Trial:
    """One forward, and what backward may be given.

    Arguments:
        args: copies of the arguments.
        leaves: those of their Variables that require a gradient.
        outputs: those that carry a gradient.
        seeds: a gradient for each output, drawn.
    """

    args: tuple[Any, ...]
    leaves: list[Variable]
    outputs: list[Variable]
    seeds: list[Any]

    def back(self, outputs: Any = None, seeds: Any = None, **options: Any) -> Gradients:
        """The gradients of the leaves, as plain data; those given in place of its own."""
        outputs = self.outputs if outputs is None else outputs
        seeds = self.seeds if seeds is None else seeds
        found = grad(outputs, self.leaves, seeds, allow_unused=True, **options)
        return [plain_data(gradient) for gradient in found]


@dataclass(frozen=True)
class Probe:
    """A Function of the tape with its arguments.

    Arguments:
        function: the Function.
        args: the arguments as they were given.
        gradient: the declared intent.
        seed: the seed of every random choice.
    """

    function: type[Function]
    args: tuple[Any, ...]
    gradient: str
    seed: int

    def fresh(self, only: int | None = None) -> tuple[tuple[Any, ...], list[Variable]]:
        """Copies of the arguments, and the leaves among them that require a gradient."""
        given, _ = layouts.find(self.args)
        places = [place for place, value in enumerate(given) if value.requires_grad]
        wanted = places if only is None else [places[only]]
        made = [
            Variable(copy.deepcopy(value.data), value.role, requires_grad=place in wanted)
            for place, value in enumerate(given)
        ]
        return layouts.replace(self.args, made), [made[place] for place in wanted]

    def run(self, args: tuple[Any, ...]) -> list[Variable]:
        """The outputs that carry a gradient."""
        made = self.function.apply(*args)
        outputs = made if isinstance(made, tuple) else (made,)
        return [v for v in outputs if isinstance(v, Variable) and v.requires_grad]

    def seeds(self, outputs: Sequence[Variable], number: int = 0) -> list[Any]:
        """A gradient for each output, drawn from the seed."""
        draw = random.Random(self.seed * 7919 + number)  # noqa: S311  # not a secret
        return [Variable(drawn(output.data, draw, i)) for i, output in enumerate(outputs)]

    def trial(self, only: int | None = None) -> Trial:
        """One forward on fresh arguments."""
        args, leaves = self.fresh(only)
        outputs = self.run(args)
        return Trial(args, leaves, outputs, self.seeds(outputs))
