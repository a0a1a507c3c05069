"""`Spline`: a piecewise polynomial in time; and `bspline`, which makes one from control points."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal.kernels._kernel import broadcast_shapes
from pullback.internal.torch import innermost
from pullback.trajectory._checks import (
    check_choice,
    check_device,
    check_floating,
    check_points,
    somewhere,
    wide_dtype,
)
from pullback.trajectory._motion import Motion
from pullback.trajectory._seconds import check_increasing, normalise_duration, take_seconds
from pullback.trajectory._state import (
    PARTS,
    State,
    check_state,
    free,
    register_dataclass,
    state_part,
)

__all__ = ["Spline", "bspline"]

# Of its duration, how far outside of a spline a rounded time may lie.
_OUTSIDE = 1 / 128


@dataclass(frozen=True, eq=False)
class Spline:
    """A piecewise polynomial of time; `bspline` and `quintic` make it.

    On segment ``i`` the position is ``sum_k coefficients[i, k] s^k`` with
    ``s = (t - knots[i]) / (knots[i + 1] - knots[i])`` between 0 and 1. A spline is a pytree.

    Arguments:
        knots: ``[..., segments + 1]`` seconds, increasing.
        coefficients: ``[..., segments, degree + 1, dof]``, in the unit of a joint.

    Raises:
        ArgumentError: the sizes do not fit.

    Example:
        >>> import torch
        >>> from pullback.trajectory import quintic
        >>> spline = quintic(torch.tensor([[0.0], [1.0]]), [0.0, 2.0])
        >>> motion = spline.sample([0.0, 1.0, 2.0])
        >>> motion.position.squeeze().tolist(), motion.velocity.squeeze().tolist()
        ([0.0, 0.5, 1.0], [0.0, 0.9375, 0.0])
    """

    knots: Tensor
    coefficients: Tensor

    def __post_init__(self) -> None:
        # Inside a pytree a leaf may be anything (an in_dim, a marker): only tensors are compared.
        if not isinstance(self.knots, Tensor) or not isinstance(self.coefficients, Tensor):
            return
        fits = self.coefficients.dim() >= 3 and self.knots.dim() >= 1
        if not fits or self.knots.shape[-1] != self.coefficients.shape[-3] + 1:
            raise ArgumentError(
                "The knots and coefficients of a spline do not fit.",
                given=f"knots {tuple(self.knots.shape)}, "
                f"coefficients {tuple(self.coefficients.shape)}",
                expected="[..., segments + 1] and [..., segments, degree + 1, dof]",
            )

    def sample(self, times: Tensor | Sequence[float]) -> Motion:
        r"""Position, velocity, acceleration and jerk at any times, differentiable in the times.

        .. math:: q^{(m)}(t) = w_i^{-m} \sum_{k \ge m} \frac{k!}{(k-m)!} c_{ik} s^{k-m}

        At a knot the right segment counts, at the last knot the last one.

        Arguments:
            times: ``[samples]`` or ``[..., samples]`` seconds, increasing, between the first and
                the last knot.

        Returns:
            a motion of shape ``[..., samples, dof]`` in the dtype of the coefficients.

        Raises:
            ArgumentTypeError: the times are not numbers or a floating tensor.
            ArgumentError: times or knots that do not increase, times outside the spline.
        """
        times = self._check(times)
        width = self.knots.diff(dim=-1)
        inner = self.knots[..., 1:-1].detach()
        segment = _find_segments(inner, times.detach())
        batch = broadcast_shapes(segment.shape[:-1], self.coefficients.shape[:-3])
        segment = segment.expand(*batch, segment.shape[-1])
        width = _pick(width, segment)
        s = (times - _pick(self.knots[..., :-1], segment)) / width
        rows = self.coefficients.flatten(-2)
        index = segment.unsqueeze(-1).expand(*segment.shape, rows.shape[-1])
        rows = rows.expand(*batch, *rows.shape[-2:]).gather(-2, index)
        coefficients = rows.unflatten(-1, self.coefficients.shape[-2:])
        dtype = self.coefficients.dtype
        parts = [
            (_derivative(coefficients, s, order) / width.unsqueeze(-1) ** order).to(dtype)
            for order in range(4)
        ]
        seconds = wide_dtype(dtype)
        first = times[..., 0].to(torch.float64) if times.shape[-1] else None
        return Motion(*parts, dt=times.diff(dim=-1).to(seconds), start_time=first)

    def _check(self, times: Any) -> Tensor:
        check_floating("knots", self.knots)
        check_floating("coefficients", self.coefficients)
        check_increasing("knots", self.knots)
        times = take_seconds("times", times, self.coefficients, several=True)
        if times.dim() < 1:
            raise ArgumentTypeError(
                "The times are not a sequence.",
                given="one number",
                expected="seconds, as a list of numbers or a floating tensor [..., samples]",
            )
        check_device("times", times, self.coefficients, "coefficients of the spline")
        batch = times.shape[:-1]
        try:
            broadcast_shapes(batch, self.knots.shape[:-1], self.coefficients.shape[:-3])
        except RuntimeError:
            raise ArgumentError(
                "The batch of the times does not fit that of the spline.",
                given=f"{tuple(batch)} beside {tuple(self.coefficients.shape[:-3])}",
            ) from None
        check_increasing("times", times)
        self._check_range(times)
        return times

    def _check_range(self, times: Tensor) -> None:
        if not times.shape[-1]:
            return
        first, last = self.knots[..., 0], self.knots[..., -1]
        # The end of a linspace may lie a rounding error outside.
        coarse = max(torch.finfo(t.dtype).eps for t in (times, self.knots))
        # Coarse times far from zero may lie anywhere: beyond a part of the spline they are refused.
        slack = torch.minimum(
            8 * coarse * torch.maximum(first.abs(), last.abs()), (last - first) * _OUTSIDE
        )
        if somewhere(times[..., 0] < first - slack) or somewhere(times[..., -1] > last + slack):
            values, knots = innermost(times), innermost(self.knots)
            raise ArgumentError(
                "A time lies outside the spline.",
                given=f"times from {values.min():.6g} to {values.max():.6g} s",
                expected=f"times between {knots.min():.6g} and {knots.max():.6g} s",
            )


def _find_segments(inner: Tensor, times: Tensor) -> Tensor:
    """How many of the inner knots each time has reached: in a time that grows with a logarithm."""
    dtype = torch.promote_types(inner.dtype, times.dtype)
    if inner.dim() > 1:
        batch = broadcast_shapes(inner.shape[:-1], times.shape[:-1])
        inner = inner.expand(*batch, inner.shape[-1])
        times = times.expand(*batch, times.shape[-1])
    # Copies: what is contiguous for one trajectory may not be so for a batch that vmap hides.
    whole = {"memory_format": torch.contiguous_format}
    return torch.searchsorted(
        inner.to(dtype).clone(**whole), times.to(dtype).clone(**whole), right=True
    )


def _pick(values: Tensor, segment: Tensor) -> Tensor:
    batch = broadcast_shapes(values.shape[:-1], segment.shape[:-1])
    index = segment.expand(*batch, segment.shape[-1])
    return values.expand(*batch, values.shape[-1]).gather(-1, index)


def _derivative(coefficients: Tensor, s: Tensor, order: int) -> Tensor:
    """The derivative in ``s``, by Horner's rule: ``[..., samples, dof]``."""
    degree = coefficients.shape[-2] - 1
    total = torch.zeros_like(coefficients[..., 0, :])
    for k in range(degree, order - 1, -1):
        total = total * s.unsqueeze(-1) + math.perm(k, order) * coefficients[..., k, :]
    return total


register_dataclass(Spline, ("knots", "coefficients"), lambda _name, _part: False)


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
