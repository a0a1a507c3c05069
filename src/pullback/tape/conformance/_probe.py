"""A Function of the tape with its arguments, as the clauses look at it."""

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pullback.tape import Function, Variable, grad
from pullback.tape import _layout as layouts
from pullback.tape.conformance._data import drawn, plain_data

__all__ = ["Breach", "Gradients", "Probe", "Skip", "Trial"]

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
        given, layout = layouts.find(self.args)
        places = [place for place, value in enumerate(given) if value.requires_grad]
        wanted = places if only is None else [places[only]]
        made = [
            Variable(copy.deepcopy(value.data), value.role, requires_grad=place in wanted)
            for place, value in enumerate(given)
        ]
        return layouts.replace(layout, self.args, made), [made[place] for place in wanted]

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
