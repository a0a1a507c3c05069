"""Which samples and boundary values each derivative is computed from, and by which weights.

A derivative of order ``k`` at a sample is the ``k``-th derivative of the polynomial through a few
*conditions*: sampled positions near it and, at the ends, given velocities, accelerations and jerks.

A weight of the ``k``-th derivative on a condition of order ``m`` scales as ``dt ** (m - k)``. For
equal steps the rest is a rational constant, found once. The inside rows come from divided
differences and the few rows at the ends from a small linear solve, all in float64 and in plain
torch operations, so that gradients with respect to dt, of any order, follow by composition.

The maths: Fornberg, "Generation of finite difference formulas on arbitrarily spaced grids",
Mathematics of Computation 51 (1988); divided differences as in any text on interpolation.
"""

import functools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pullback.internal.kernels._kernel import register_kernel

__all__ = ["SCHEMES", "Layout", "Scheme", "nonuniform_table", "uniform_table"]

Scheme = Literal["backward", "central"]
Side = Literal["left", "right"]
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

    @property
    def conditions(self) -> int:
        """How many boundary values there are."""
        return len(self.start) + len(self.goal)

    @property
    def geometry(self) -> Geometry:
        """The integers that a kernel needs."""
        head = 0 if 0 in self.start else -1
        tail = len(self.start) if 0 in self.goal else -1
        return Geometry(*_SIZES[self.scheme], head, tail)

    def column(self, side: Side, sample: int, order: int) -> int:
        """Return the column of a row's weights that a condition belongs to.

        Samples count from 0 on the left and from the last (0, -1, ...) on the right; the order is 0
        for a position, else that of the boundary value.
        """
        if order == 0:
            return sample + (self.geometry.width - 1) * (side == "right")
        given = self.start.index(order) if side == "left" else self.goal.index(order)
        return self.geometry.width + given + len(self.start) * (side == "right")


def choose_conditions(layout: Layout, side: Side, row: int, order: int) -> list[Condition]:
    """Return the conditions for the derivative of an order at a row at an end.

    Backward: the ``order + 1`` newest; velocity is exact on lines, acceleration on parabolas,
    jerk on cubics. Central: as many as make velocity exact on parabolas, acceleration on cubics and
    jerk on quartics, as they are inside. Samples are counted from the side, as in `Layout.column`,
    and rows inwards from the end.
    """
    given = layout.goal if side == "right" else layout.start
    if row == 0 and order in given:
        return [(0, order)]
    if layout.scheme == "backward":
        return _backward(given, side, row, order)
    sign = -1 if side == "right" else 1
    # The samples around the row come first, then what is given, then samples further inside.
    near = [0] if row == 0 else [0, 1, 2]
    far = range(len(near), layout.geometry.width)
    known = [(0, known) for known in given if 0 < known <= order + 1]
    candidates = [(sign * sample, 0) for sample in near]
    candidates += known + [(sign * sample, 0) for sample in far]
    return candidates[: order + 2]


def _backward(given: tuple[int, ...], side: Side, row: int, order: int) -> list[Condition]:
    if side == "right":
        return [(-sample, 0) for sample in range(order + 1)]
    past = [(sample, 0) for sample in range(row, -1, -1)]
    known = [(0, known) for known in given if 0 < known <= order]
    future = [(sample, 0) for sample in range(row + 1, 4)]
    return (past + known + future)[: order + 1]


# The least common denominator of all weights for equal steps.
_PARTS = 924


def uniform_table(
    layout: Layout, dt: Tensor | float, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Return the weights for one step in seconds, ``[1, left + 1 + right, 3, columns]``.

    They are found in float64 and rounded.
    """
    constants = _constants(layout.scheme, list(layout.start), list(layout.goal))
    orders = [0] * layout.geometry.width + list(layout.start) + list(layout.goal)
    known = torch.tensor(orders, dtype=torch.float64, device="cpu")
    exponents = known - torch.tensor(ORDERS, dtype=torch.float64, device="cpu")[:, None]
    if device.type != "cpu":
        constants, exponents = constants.to(device), exponents.to(device)
    if not isinstance(dt, Tensor):
        dt = torch.full((), dt, dtype=torch.float64, device=device)
    return (constants * dt.to(torch.float64) ** exponents).to(dtype)


def nonuniform_table(layout: Layout, dt: Tensor, dtype: torch.dtype) -> Tensor:
    """`uniform_table` for steps ``[trajectories, horizon - 1]``: ``[..., horizon, 3, columns]``."""
    dt = dt.to(torch.float64)
    inside = _central_rows(dt) if layout.scheme == "central" else _backward_rows(dt)
    inside = torch.nn.functional.pad(inside, (0, layout.conditions))
    # Inside rows are those with a whole window; backward, that includes the very last one.
    kept = inside if layout.scheme == "central" else inside[:, :-1]
    first = _end_rows(layout, "left", layout.geometry.left, dt)
    last = _end_rows(layout, "right", layout.geometry.right, dt)
    return torch.cat([first, kept, last], dim=1).to(dtype)


@functools.cache
def _uniform_constants(layout: Layout) -> tuple[float, ...]:
    steps = layout.geometry.left + layout.geometry.right
    one = torch.ones(1, steps, dtype=torch.float64, device="cpu")
    # Steps of one second over the least horizon with an inside row. What the solves round is
    # 1e-14, and the exact rationals are that many parts of a whole.
    near = nonuniform_table(layout, one, torch.float64) * _PARTS
    return tuple((near.round() / _PARTS).flatten().tolist())


@register_kernel("pullback::stencil_constants")
def _constants(scheme: str, start: list[int], goal: list[int]) -> Tensor:
    # An operator, so that compiled code takes the exact rationals as they are.
    layout = Layout(scheme, tuple(start), tuple(goal))  # pyrefly: ignore[bad-argument-type]
    flat = _uniform_constants(layout)
    return torch.tensor(flat, dtype=torch.float64, device="cpu").view(_constants_shape(layout))


@_constants.register_fake
def _(scheme: str, start: list[int], goal: list[int]) -> Tensor:
    layout = Layout(scheme, tuple(start), tuple(goal))  # pyrefly: ignore[bad-argument-type]
    return torch.empty(_constants_shape(layout), dtype=torch.float64, device="cpu")


def _constants_shape(layout: Layout) -> tuple[int, int, int, int]:
    columns = layout.geometry.width + layout.conditions
    return 1, layout.geometry.left + 1 + layout.geometry.right, len(ORDERS), columns


def _divide_differences(dt: Tensor, order: int) -> Tensor:
    """Return the weights of f[i .. i + order], ``[trajectories, horizon - order, order + 1]``."""
    horizon = dt.shape[-1] + 1
    weights = torch.ones(dt.shape[0], horizon, 1, dtype=dt.dtype, device=dt.device)
    span = torch.zeros(dt.shape[0], horizon, dtype=dt.dtype, device=dt.device)
    for level in range(1, order + 1):
        span = span[:, :-1] + dt[:, level - 1 :]
        newer = torch.nn.functional.pad(weights[:, 1:], (1, 0))
        older = torch.nn.functional.pad(weights[:, :-1], (0, 1))
        weights = (newer - older) / span[..., None]
    return weights


def _backward_rows(dt: Tensor) -> Tensor:
    """Weights of rows 3 .. horizon - 1 over (h - 3, .., h)."""
    rows = []
    for order in ORDERS:
        divided = _divide_differences(dt, order)[:, 3 - order :] * math.factorial(order)
        rows.append(torch.nn.functional.pad(divided, (3 - order, 0)))
    return torch.stack(rows, dim=2)


def _central_rows(dt: Tensor) -> Tensor:
    """Weights of rows 2 .. horizon - 3 over (h - 2, .., h + 2)."""
    farther, past, future = dt[:, :-3], dt[:, 1:-2], dt[:, 2:-1]
    pad = torch.nn.functional.pad
    slopes = _divide_differences(dt, 1)
    arriving, leaving = pad(slopes[:, 1:-2], (1, 2)), pad(slopes[:, 2:-1], (2, 1))
    share = (past / (past + future))[..., None]
    velocity = arriving + share * (leaving - arriving)
    # Third derivative at t_h of the quartic in Newton form over h-2, h-1, h, h+1, h+2.
    away = ((farther + past) + past - future)[..., None]
    third, fourth = _divide_differences(dt, 3)[:, :-1], _divide_differences(dt, 4)
    jerk = 6 * pad(third, (0, 1)) + 6 * away * fourth
    # The three-point formula errs by (dt+ - dt-) / 3 times the jerk; without, cubics are exact.
    second = pad(_divide_differences(dt, 2)[:, 1:-1], (1, 1))
    acceleration = 2 * second - ((future - past) / 3)[..., None] * jerk
    return torch.stack([velocity, acceleration, jerk], dim=2)


def _end_rows(layout: Layout, side: Side, count: int, dt: Tensor) -> Tensor:
    """Weights of the first or last rows, ``[trajectories, count, 3, columns]``, by small solves."""
    width = layout.geometry.width
    edge = dt[:, : width - 1] if side == "left" else dt[:, 1 - width :]
    # Times in units of the mean step near the end keep the systems well scaled.
    unit = edge.mean(-1, keepdim=True)
    times = torch.nn.functional.pad((edge / unit).cumsum(-1), (1, 0))
    anchor = 0 if side == "left" else width - 1
    rows = []
    for row in range(count) if side == "left" else reversed(range(count)):
        now = times[:, row] if side == "left" else times[:, width - 1 - row]
        for order in ORDERS:
            chosen = choose_conditions(layout, side, row, order)
            weights = _solve_for_weights(chosen, times - now[:, None], anchor, order)
            orders = torch.tensor([known - order for _, known in chosen], device=dt.device)
            columns = [layout.column(side, sample, known) for sample, known in chosen]
            places, many = torch.tensor(columns, device=dt.device), width + layout.conditions
            spread = torch.nn.functional.one_hot(places, many).to(dt.dtype)
            rows.append((weights * unit**orders) @ spread)
    return torch.stack(rows, dim=1).reshape(dt.shape[0], count, len(ORDERS), -1)


def _solve_for_weights(chosen: list[Condition], times: Tensor, anchor: int, order: int) -> Tensor:
    """The weights w with sum(w * condition(p)) = p^(order)(0) for polynomials p.

    ``times`` are relative to the row. Column c of the system is condition c applied to
    ``t^power / power!``, one power in each row.
    """
    size = len(chosen)
    if chosen == [(0, order)]:
        return torch.ones(times.shape[0], 1, dtype=times.dtype, device=times.device)
    columns = []
    for sample, known in chosen:
        time = times[:, anchor + sample]
        powers = [
            time ** (power - known) / math.factorial(power - known)
            if power >= known
            else torch.zeros_like(time)
            for power in range(size)
        ]
        columns.append(torch.stack(powers, dim=-1))
    matrix = torch.stack(columns, dim=-1)
    wanted = torch.zeros(size, dtype=times.dtype, device=times.device)
    wanted[order] = 1.0
    # Not torch.linalg.solve: in torch 2.13 the derivative of its forward mode is wrong.
    return (torch.linalg.inv(matrix) @ wanted.expand(times.shape[0], size)[..., None])[..., 0]
