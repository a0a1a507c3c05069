"""`Layout`: which samples and boundary values each derivative is computed from.

A derivative of order ``k`` at a sample is the ``k``-th derivative of the polynomial through a few
*conditions*: sampled positions near it and, at the ends, given velocities, accelerations and
jerks. This file only chooses the conditions; `_weights` turns them into numbers.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = [
    "SCHEMES",
    "Condition",
    "Geometry",
    "Layout",
    "Scheme",
    "choose_conditions",
]

Scheme = Literal["backward", "central"]
Side = Literal["left", "inside", "right"]
Condition = tuple[int, int]
"""A sample relative to the row's anchor, and the order of the derivative that is known there."""

SCHEMES: tuple[Scheme, ...] = ("backward", "central")
# Samples before a row and in its window; rows at either end with weights of their own.
_SIZES = {"backward": (3, 4, 3, 1), "central": (2, 5, 2, 2)}
ORDERS = (1, 2, 3)


class Geometry(NamedTuple):
    """What a kernel needs of a `Layout`.

    ``head`` and ``tail`` are the columns of the boundary values that replace the first and the last
    sample; -1 where none does.
    """

    before: int
    width: int
    left: int
    right: int
    head: int
    tail: int


@dataclass(frozen=True)
class Layout:
    """The geometry of a stencil over a horizon, and the orders of what is given at its ends.

    Row ``h`` reads the window of ``width`` samples that begins ``before`` samples before it,
    moved inwards at the ends. Rows ``0 .. left - 1`` and the last ``right`` rows have weights of
    their own.
    """

    scheme: Scheme
    start: tuple[int, ...]
    goal: tuple[int, ...]

    conditions: int = field(init=False, compare=False)
    """How many boundary values there are."""

    geometry: Geometry = field(init=False, compare=False)
    """The integers that a kernel needs."""

    def __post_init__(self) -> None:
        head = 0 if 0 in self.start else -1
        tail = len(self.start) if 0 in self.goal else -1
        object.__setattr__(self, "conditions", len(self.start) + len(self.goal))
        object.__setattr__(self, "geometry", Geometry(*_SIZES[self.scheme], head, tail))

    @property
    def code(self) -> str:
        """The geometry as a word: an argument without a structure that each call would walk."""
        return ",".join(map(str, self.geometry))

    def column(self, side: Side, sample: int, order: int) -> int:
        """Return the column of a row's weights that a condition belongs to.

        Samples count from 0 on the left, from the last (0, -1, ...) on the right, and inside from
        the row itself; the order is 0 for a position, else that of the boundary value.
        """
        if order == 0:
            offset = {"left": 0, "inside": self.geometry.before, "right": self.geometry.width - 1}[
                side
            ]
            return sample + offset
        if side == "left":
            return self.geometry.width + self.start.index(order)
        return self.geometry.width + len(self.start) + self.goal.index(order)


def choose_conditions(layout: Layout, side: Side, row: int, order: int) -> list[Condition]:
    """Return the conditions for the derivative of an order at a row.

    Backward: the ``order + 1`` newest; velocity is exact on lines, acceleration on parabolas,
    jerk on cubics. Central: symmetric inside; at an end as many as make velocity exact on
    parabolas, acceleration on cubics and jerk on quartics, as they are inside. Samples are counted
    from the side, as in `Layout.column`, and rows inwards from the end (0 inside).
    """
    given = layout.goal if side == "right" else layout.start
    if side != "inside" and row == 0 and order in given:
        return [(0, order)]
    if layout.scheme == "backward":
        return _backward(given, side, row, order)
    if side == "inside":
        reach = 2 if order == 3 else 1
        return [(sample, 0) for sample in range(-reach, reach + 1)]
    sign = -1 if side == "right" else 1
    # The samples around the row come first, then what is given, then samples further inside.
    near = [0] if row == 0 else [0, 1, 2]
    far = range(len(near), layout.geometry.width)
    known = [(0, known) for known in given if 0 < known <= order + 1]
    candidates = [(sign * sample, 0) for sample in near]
    candidates += known + [(sign * sample, 0) for sample in far]
    return candidates[: order + 2]


def _backward(given: tuple[int, ...], side: Side, row: int, order: int) -> list[Condition]:
    if side != "left":
        return [(-sample, 0) for sample in range(order + 1)]
    past = [(sample, 0) for sample in range(row, -1, -1)]
    known = [(0, known) for known in given if 0 < known <= order]
    future = [(sample, 0) for sample in range(row + 1, 4)]
    return (past + known + future)[: order + 1]
