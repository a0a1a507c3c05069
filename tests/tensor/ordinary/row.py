"""One ordinary Function: its class, what is right, and the points at which it is asked."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

__all__ = ["ROWS", "Row", "function", "surrogate", "t"]

Point = tuple[Any, ...]


@dataclass(frozen=True, eq=False)  # hashed by identity
class Row:
    """One Function.

    Arguments:
        bare: the class as its author wrote it.
        formula: a function for autograd with the same value, first and second derivative; ``None``
            where torch's own answer for ``bare`` is the only one.
        points: arguments by name. At those not called ``"ordinary"`` (kinks, zeros, ties) the
            truth is what torch gives for ``bare`` where that saves inputs and outputs alone, and
            else the derivative of backward with forward run again before it.
        intent: what backward is.
        plain: saves inputs and outputs alone.
        constant: positions of floating tensors that have no gradient.
        outputs: positions of the outputs that have one; all that are floating by default.
        random: draws numbers, which torch does not batch unasked.
    """

    name: str
    bare: type[torch.autograd.Function]
    formula: Callable[..., Any] | None
    points: dict[str, Point]
    intent: Literal["exact", "surrogate", "nonlinear"] = "exact"
    plain: bool = True
    constant: tuple[int, ...] = ()
    outputs: tuple[int, ...] | None = None
    random: bool = False

    def differentiable(self, args: Point) -> tuple[int, ...]:
        """Positions of the arguments that have a gradient."""
        return tuple(
            i
            for i, a in enumerate(args)
            if isinstance(a, torch.Tensor) and a.is_floating_point() and i not in self.constant
        )


ROWS: list[Row] = []


def function(
    name: str, formula: Callable[..., Any] | None, points: Any, **more: Any
) -> Callable[..., Any]:
    """Add a class to the table; ``points`` is a dict, or the arguments of the ordinary one."""

    def add(bare: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
        named = points if isinstance(points, dict) else {"ordinary": points}
        ROWS.append(Row(name, bare, formula, named, **more))
        return bare

    return add


def surrogate(value: Callable[..., Any], smooth: Callable[..., Any]) -> Callable[..., Any]:
    """The value of one function with all derivatives of another one."""

    def formula(*args: Any) -> torch.Tensor:
        other = smooth(*args)
        return other + (value(*args) - other).detach()

    return formula


def t(*values: Any) -> torch.Tensor:
    """A tensor in float64, of one number a scalar."""
    one = len(values) == 1 and isinstance(values[0], float)
    return torch.tensor(values[0] if one else values, dtype=torch.float64)
