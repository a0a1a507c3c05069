"""`bspline`: clamped B-splines from control points, with what is known at the ends."""

import math

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.kernels._shapes import broadcast_shapes
from pullback.trajectory._checks import check_choice, check_points
from pullback.trajectory._seconds import normalise_duration
from pullback.trajectory._state import PARTS, State, check_state, free, state_part
from pullback.trajectory.curves._spline import Spline

__all__ = ["bspline"]


def bspline(
    control_points: Tensor,
    duration: float | Tensor,
    *,
    degree: int = 3,
    start: State | None = None,
    goal: State | None = None,
) -> Spline:
    r"""A clamped B-spline with uniform knots, whose ends are in given states.

    .. math:: q(t) = \sum_i B_{i,d}(t / T) \, P_i

    Each part given of ``start`` adds one control point at the beginning, such that the spline is
    in that state at time 0; each part of ``goal`` adds one at the end. So ``rest`` at both ends
    and ``n`` control points make a spline of ``n + 4`` control points, which begins at the first
    one given and ends at the last. Without ``start`` and ``goal`` it is the plain spline.

    Differentiable in the control points, the states and the duration.

    Arguments:
        control_points: ``[..., count, dof]``, in the unit of a joint.
        duration: seconds, a number or ``[...]``.
        degree: 3, 4 or 5; the spline has ``degree - 1`` continuous derivatives.
        start: what is known at time 0.
        goal: what is known at the end.

    Returns:
        a `Spline` on ``[0, duration]`` of ``count + given parts - degree`` segments.

    Raises:
        ArgumentError: a degree out of range, too few control points, a batch, dof or device that
            does not fit, a duration that is not positive.
        ArgumentTypeError: arguments of a wrong type.

    Example:
        >>> import torch
        >>> from pullback.trajectory import bspline, rest
        >>> spline = bspline(torch.tensor([[0.0], [2.0], [1.0]]), 2.0, start=rest, goal=rest)
        >>> motion = spline.sample([0.0, 1.0, 2.0])
        >>> [round(q, 3) for q in motion.position.flatten().tolist()]
        [0.0, 1.5, 1.0]
        >>> motion.velocity.flatten()[[0, 2]].abs().tolist()
        [0.0, 0.0]

    Source: de Boor, A Practical Guide to Splines, chapters IX and X.
    """
    check_choice("degree of a B-spline", degree, (3, 4, 5))
    start, goal = free if start is None else start, free if goal is None else goal
    check_points(control_points, what="control points", least=1)
    check_state("start", start, control_points)
    check_state("goal", goal, control_points)
    duration = normalise_duration(duration, control_points)
    count = control_points.shape[-2] + len(start.given) + len(goal.given)
    least = max(degree + 1, _reach(start) + _reach(goal))
    if count < least:
        raise ArgumentError(
            "There are too few control points.",
            given=f"{control_points.shape[-2]}, and {count - control_points.shape[-2]} from the "
            "states of start and goal",
            expected=f"{least} in all, for degree {degree} and these states",
        )
    points = _complete(control_points, duration, degree, start, goal)
    segments = count - degree
    local = _to_powers(count, degree).to(points.device)
    windows = points.unfold(-2, degree + 1, 1)  # [..., segments, dof, degree + 1]
    coefficients = torch.einsum("skw,...sdw->...skd", local, windows)
    fractions = torch.arange(segments + 1, dtype=torch.float64, device=points.device) / segments
    knots = duration.to(torch.float64).unsqueeze(-1) * fractions
    return Spline(knots, coefficients.to(control_points.dtype))


def _reach(state: State) -> int:
    """How many control points from the end a state speaks of."""
    return max([0, *(PARTS.index(part) + 1 for part in state.given)])


def _complete(points: Tensor, duration: Tensor, degree: int, start: State, goal: State) -> Tensor:
    """The control points in float64, with those that the states add."""
    count = points.shape[-2] + len(start.given) + len(goal.given)
    points = points.to(torch.float64)
    time = duration.to(torch.float64)[..., None, None]
    head, taken = _end(points, time, start, _ends(count, degree), 1.0)
    tail, taken_back = _end(points.flip(-2), time, goal, _ends(count, degree), -1.0)
    middle = points[..., taken : points.shape[-2] - taken_back, :]
    parts = [*head, middle, *reversed(tail)]
    batch = broadcast_shapes(*(part.shape[:-2] for part in parts))
    return torch.cat([part.expand(*batch, -1, points.shape[-1]) for part in parts], dim=-2)


def _end(
    points: Tensor, time: Tensor, state: State, table: list[list[float]], direction: float
) -> tuple[list[Tensor], int]:
    """The control points at one end, and how many of them were taken from those given.

    Derivative ``k`` at the end is ``sum_{i <= k} table[k, i] P_i / T^k``, so that a state fixes
    its control points one after another.
    """
    found: list[Tensor] = []
    taken = 0
    for k in range(_reach(state)):
        if PARTS[k] not in state.given:
            found.append(points[..., taken : taken + 1, :])
            taken += 1
            continue
        value = state_part(state, PARTS[k], points) * time**k * direction**k
        for i, point in enumerate(found):
            value = value - table[k][i] * point
        found.append(value / table[k][k])
    return found, taken


def _ends(count: int, degree: int) -> list[list[float]]:
    """``table[k][i]``: derivative ``k`` at 0 of basis function ``i``, on knots over [0, 1]."""
    first = _segment(0, count - degree, degree)
    return [
        [math.factorial(k) * (count - degree) ** k * first[i][k] for i in range(degree + 1)]
        for k in range(4)
    ]


def _to_powers(count: int, degree: int) -> Tensor:
    """Matrices ``[segments, degree + 1, degree + 1]`` from control points to powers of ``s``."""
    segments = count - degree
    # Segments that the ends do not reach are all alike, so one of them stands for all.
    edge = degree - 1
    inner = max(segments - 2 * edge, 0)
    few = segments if not inner else 2 * edge + 1
    local = torch.tensor(
        [_segment(i, few, degree) for i in range(few)], dtype=torch.float64, device="cpu"
    )
    if inner > 1:
        middle = local[edge : edge + 1].expand(inner, -1, -1)
        local = torch.cat([local[:edge], middle, local[edge + 1 :]])
    return local.mT


def _segment(segment: int, segments: int, degree: int) -> list[list[float]]:
    """Row ``w``: the polynomial of basis function ``segment + w`` on a segment, in powers of ``s``.

    By the recursion of Cox and de Boor on polynomials, with a knot every 1.
    """
    knots = [0] * degree + list(range(segments + 1)) + [segments] * degree
    basis = {segment + degree: [1.0]}
    for d in range(1, degree + 1):
        higher: dict[int, list[float]] = {}
        for i in range(segment + degree - d, segment + degree + 1):
            total = [0.0] * (d + 1)
            if i in basis:
                width = knots[i + d] - knots[i]
                _add_product(total, basis[i], (segment - knots[i]) / width, 1 / width)
            if i + 1 in basis:
                width = knots[i + d + 1] - knots[i + 1]
                constant = (knots[i + d + 1] - segment) / width
                _add_product(total, basis[i + 1], constant, -1 / width)
            higher[i] = total
        basis = higher
    return [basis[segment + w] for w in range(degree + 1)]


def _add_product(
    total: list[float], polynomial: list[float], constant: float, slope: float
) -> None:
    """Add a polynomial in ``s`` times ``constant + slope s``."""
    for power, value in enumerate(polynomial):
        total[power] += constant * value
        total[power + 1] += slope * value
