"""`State`: what is known of a trajectory at one end, at one instant."""

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pullback.errors import ArgumentTypeError
from pullback.trajectory._plain import plain
from pullback.trajectory._pytree import register_dataclass

__all__ = ["State", "free", "hold", "rest"]

PARTS = ("position", "velocity", "acceleration", "jerk")


def _wrong_part(name: str, part: object) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"The {name} of a state cannot be a {type(part).__name__}.",
        given=repr(part),
        expected="a number, numbers in a list, a tensor or None",
    )


def _constant(name: str, part: Any) -> Any:
    """Numbers in lists as tuples, which are constants of the structure."""
    if isinstance(part, (list, tuple)):
        return tuple(_constant(name, inner) for inner in part)
    if isinstance(part, numbers.Real) and not isinstance(part, bool):
        return float(part)
    raise _wrong_part(name, part)


@dataclass(frozen=True, eq=False)
class State:
    """Position, velocity, acceleration and jerk at one instant; a part left out is free.

    All parts hold at the same instant: sample 0 for a start, the last sample for a goal. A `State`
    is a pytree whose leaves are its tensors.

    Arguments:
        position: a number, ``[dof]`` or ``[..., dof]``, a tensor or a list, in the unit of a joint,
            or ``None``.
        velocity: the same, per second.
        acceleration: the same, per second squared.
        jerk: the same, per second cubed.

    Raises:
        ArgumentTypeError: a part is neither a number, a list of them, a tensor nor ``None``.

    Example:
        >>> import torch
        >>> from pullback.trajectory import State, rest
        >>> State(position=torch.zeros(7), velocity=0.0).given
        ('position', 'velocity')
        >>> rest.given
        ('velocity', 'acceleration')
        >>> rest.at(torch.zeros(7)).given
        ('position', 'velocity', 'acceleration')
    """

    position: Tensor | float | Sequence[Any] | None = None
    velocity: Tensor | float | Sequence[Any] | None = None
    acceleration: Tensor | float | Sequence[Any] | None = None
    jerk: Tensor | float | Sequence[Any] | None = None

    def __post_init__(self) -> None:
        for name in PARTS:
            part = plain(getattr(self, name))
            if isinstance(part, (list, tuple)):
                part = _constant(name, part)
            # Text is the one mistake that would otherwise fail far from here; other objects may
            # stand for a tensor while a pytree is rebuilt.
            if isinstance(part, (str, bytes, bool)):
                raise _wrong_part(name, part)
            object.__setattr__(self, name, part)

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the parts that are given."""
        return tuple(name for name in PARTS if getattr(self, name) is not None)

    def at(self, position: Tensor | float | Sequence[Any]) -> "State":
        """Return this state at a position: ``rest.at(q)`` stands still at ``q``.

        Arguments:
            position: a number, ``[dof]`` or ``[..., dof]``.
        """
        return State(position, self.velocity, self.acceleration, self.jerk)


free = State()
"""Nothing is known: the derivatives at the end come from the samples alone."""

rest = State(velocity=0.0, acceleration=0.0)
"""Standing still: velocity and acceleration are zero; the position is the sample's own."""

hold = State(velocity=0.0, acceleration=0.0, jerk=0.0)
"""Standing still and staying so: velocity, acceleration and jerk are zero."""


def _is_constant(_name: str, part: Any) -> bool:
    # Numbers and None are constants of the structure, so that vmap and grad see tensors only.
    return part is None or isinstance(part, (int, float, tuple))


register_dataclass(State, PARTS, _is_constant)
