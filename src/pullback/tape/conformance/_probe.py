"""A Function of the tape with its arguments, as the clauses look at it, and the data of both."""

import cmath
import copy
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pullback.tape import Feedback, Function, Variable, grad
from pullback.tape._layout import find, mapped, replace

__all__ = [
    "Breach",
    "Probe",
    "Skip",
    "Trial",
    "agree",
    "another",
    "changed",
    "moved",
    "numbers_in",
    "plain_data",
]


class Breach(Exception):
    """A clause is broken."""


class Skip(Exception):
    """A clause does not apply."""


def _is_tensor(data: Any) -> Any:
    """Whether it is a tensor, where torch is."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(data, torch.Tensor)


def plain_data(gradient: Any) -> Any:
    """A gradient as data that can be compared: feedback as the texts of its notes."""
    if isinstance(gradient, Feedback):
        return [note.data for note in gradient]
    data = gradient.data if isinstance(gradient, Variable) else gradient
    return mapped(Variable, plain_data, data)


def changed(data: Any, number: Callable[[float], float], text: Callable[[str], Any] = str) -> Any:
    """Data of the same structure with other numbers and texts."""

    def leaf(value: Any) -> Any:
        if isinstance(value, str):
            return text(value)
        if _is_tensor(value) and value.is_floating_point():
            numbers = [number(each) for each in value.flatten().tolist()]
            return value.new_tensor(numbers).reshape(value.shape)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return number(float(value))
        return value

    return mapped(object, leaf, data)


def numbers_in(data: Any) -> list[float]:
    """The numbers in data, in order."""
    found: list[float] = []
    changed(data, lambda number: found.append(number) or number)
    return found


def moved(data: Any, changes: Iterable[float]) -> Any:
    """The data with something added to each number, in order."""
    each = iter(changes)
    return changed(data, lambda number: number + next(each))


def another(data: Any) -> Any:
    """Data of the same structure that differs in each number and text."""
    return changed(data, lambda number: number + 1.25, lambda text: f"{text} and more")


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


class Trial(NamedTuple):
    """One forward on copies of the arguments, and a gradient for each output of it."""

    args: tuple[Any, ...]
    leaves: list[Variable]
    outputs: list[Variable]
    seeds: list[Any]

    def back(self, outputs: Any = None, seeds: Any = None, **options: Any) -> list[Any]:
        """The gradients of the leaves, as plain data; those given in place of its own."""
        outputs = self.outputs if outputs is None else outputs
        seeds = self.seeds if seeds is None else seeds
        found = grad(outputs, self.leaves, seeds, allow_unused=True, **options)
        return list(map(plain_data, found))


@dataclass(frozen=True)
class Probe:
    """A Function of the tape with its arguments as they were given, its intent, and a seed."""

    function: type[Function]
    args: tuple[Any, ...]
    gradient: str
    seed: int

    def fresh(
        self, change: Callable[[Any], Any] = copy.deepcopy, only: int | None = None
    ) -> tuple[tuple[Any, ...], list[Variable]]:
        """Copies of the arguments, changed; and the leaves: all, or one alone."""
        made, leaves = [], []
        for value in find(self.args)[0]:
            make = change if value.requires_grad else copy.deepcopy
            made.append(Variable(make(value.data), value.role))
            if value.requires_grad:
                leaves.append(made[-1])
        wanted = leaves if only is None else [leaves[only]]
        for leaf in wanted:
            leaf.requires_grad_()
        return replace(self.args, made), wanted

    def run(self, args: tuple[Any, ...]) -> list[Variable]:
        """The outputs that carry a gradient."""
        made = self.function.apply(*args)
        outputs = made if isinstance(made, tuple) else (made,)
        return [v for v in outputs if isinstance(v, Variable) and v.requires_grad]

    def seeds(self, outputs: Sequence[Variable], number: int = 0) -> list[Any]:
        """A gradient for each output: numbers drawn from the seed, and a note to each text."""
        draw = random.Random(self.seed * 7919 + number)  # noqa: S311  # not a secret
        return [
            Variable(changed(each.data, lambda _: draw.gauss(0, 1), lambda _, n=n: f"note {n}"))
            for n, each in enumerate(outputs)
        ]

    def trial(self, change: Callable[[Any], Any] = copy.deepcopy, only: int | None = None) -> Trial:
        """One forward on fresh arguments."""
        args, leaves = self.fresh(change, only)
        outputs = self.run(args)
        return Trial(args, leaves, outputs, self.seeds(outputs))
