"""A Function of the tape with its arguments, as the clauses look at it."""

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pullback.tape import Function, Variable, grad
from pullback.tape.conformance._data import drawn, plain_data, rebuild

__all__ = ["Breach", "Gradients", "Probe", "Skip"]

Gradients = list[Any]


class Breach(Exception):
    """A clause is broken."""


class Skip(Exception):
    """A clause does not apply."""


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
        leaves: list[Variable] = []
        count = [0]

        def change(value: Any) -> Any:
            if not isinstance(value, Variable):
                return None
            wanted = value.requires_grad and only in (None, count[0])
            count[0] += value.requires_grad
            leaf = Variable(copy.deepcopy(value.data), value.role, requires_grad=wanted)
            if wanted:
                leaves.append(leaf)
            return leaf

        return tuple(rebuild(arg, change) for arg in self.args), leaves

    def run(self, args: tuple[Any, ...]) -> list[Variable]:
        """The outputs that carry a gradient."""
        made = self.function.apply(*args)
        outputs = made if isinstance(made, tuple) else (made,)
        return [v for v in outputs if isinstance(v, Variable) and v.requires_grad]

    def seeds(self, outputs: Sequence[Variable], number: int = 0) -> list[Any]:
        """A gradient for each output, drawn from the seed."""
        draw = random.Random(self.seed * 7919 + number)  # noqa: S311  # not a secret
        return [Variable(drawn(output.data, draw, i)) for i, output in enumerate(outputs)]

    def pull(self, args: Any, leaves: list[Variable], number: int = 0) -> Gradients:
        """The gradients of the leaves after one forward and backward."""
        outputs = self.run(args)
        return self.back(outputs, leaves, self.seeds(outputs, number))

    def back(self, outputs: Any, leaves: list[Variable], seeds: Any, **options: Any) -> Gradients:
        """The gradients of the leaves for given gradients of the outputs, as plain data."""
        found = grad(outputs, leaves, seeds, allow_unused=True, **options)
        return [plain_data(gradient) for gradient in found]
