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
    segments = count - degree
    local = _to_powers(count, degree).to(control_points.device)
    # Derivative k at 0 of each basis function, on knots over [0, 1].
    table = [math.factorial(k) * segments**k * local[0, k] for k in range(4)]
    points = _complete(control_points, duration, table, start, goal)
    windows = points.unfold(-2, degree + 1, 1)  # [..., segments, dof, degree + 1]
    coefficients = torch.einsum("skw,...sdw->...skd", local, windows)
    fractions = torch.arange(segments + 1, dtype=torch.float64, device=points.device) / segments
    knots = duration.to(torch.float64).unsqueeze(-1) * fractions
    return Spline(knots, coefficients.to(control_points.dtype))


def _reach(state: State) -> int:
    """How many control points from the end a state speaks of."""
    return max([0, *(PARTS.index(part) + 1 for part in state.given)])


def _complete(
    points: Tensor, duration: Tensor, table: list[Tensor], start: State, goal: State
) -> Tensor:
    """The control points in float64, with those that the states add."""
    points = points.to(torch.float64)
    time = duration.to(torch.float64)[..., None, None]
    head, taken = _end(points, time, start, table, 1.0)
    tail, taken_back = _end(points.flip(-2), time, goal, table, -1.0)
    middle = points[..., taken : points.shape[-2] - taken_back, :]
    parts = [*head, middle, *reversed(tail)]
    batch = broadcast_shapes(*(part.shape[:-2] for part in parts))
    return torch.cat([part.expand(*batch, -1, points.shape[-1]) for part in parts], dim=-2)


def _end(
    points: Tensor, time: Tensor, state: State, table: list[Tensor], direction: float
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


def _to_powers(count: int, degree: int) -> Tensor:
    """Matrices ``[segments, degree + 1, degree + 1]`` from control points to powers of ``s``.

    Column ``w`` of segment ``i`` is the polynomial of basis function ``i + w`` there, by the
    recursion of Cox and de Boor with a knot every 1, in all segments at once.
    """
    segments = count - degree
    begin = torch.arange(segments, dtype=torch.float64, device="cpu")
    # Knots beside each segment, of which those beyond the ends lie on them.
    offsets = torch.arange(1 - degree, degree + 1, device="cpu")
    knots = (begin[:, None] + offsets).clamp(0, segments)
    rows = torch.ones(segments, 1, 1, dtype=torch.float64, device="cpu")
    pad = torch.nn.functional.pad
    for d in range(1, degree + 1):
        low, high = knots[:, degree - d : degree], knots[:, degree : degree + d]
        # Basis function w of degree d - 1 rises over its knots and falls over those of the next.
        width = (high - low)[:, None]
        since, same = (begin[:, None] - low)[:, None], pad(rows, (0, 0, 0, 1))
        risen = (since * same + pad(rows, (0, 0, 1, 0))) / width
        fallen = same - risen
        rows = pad(fallen, (0, 1)) + pad(risen, (1, 0))
    return rows
