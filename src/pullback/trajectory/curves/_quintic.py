"""`quintic`: the piecewise quintic of least jerk through points at given times."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.kernels._kernel import broadcast_shapes
from pullback.internal.torch import innermost
from pullback.trajectory._checks import check_batch, check_points, somewhere
from pullback.trajectory._seconds import normalise_times
from pullback.trajectory._state import State, check_state, rest, state_part
from pullback.trajectory.curves._spline import Spline

__all__ = ["hermite", "quintic"]

# Rows: the coefficients of s^0 .. s^5; columns: p0, v0 w, a0 w^2, p1, v1 w, a1 w^2.
_HERMITE = (
    (1.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    (0.0, 1.0, 0.0, 0.0, 0.0, 0.0),
    (0.0, 0.0, 0.5, 0.0, 0.0, 0.0),
    (-10.0, -6.0, -1.5, 10.0, -4.0, 0.5),
    (15.0, 8.0, 1.5, -15.0, 7.0, -1.0),
    (-6.0, -3.0, -0.5, 6.0, -3.0, 0.5),
)
# Of the longest segment: with a shorter one a known solution is sought first, and found to so much.
_SHORT, _FOUND = 1e-3, 1e-10
# The integral of the squared jerk over s in [0, 1], for the coefficients of s^3, s^4, s^5.
_JERK = ((36.0, 72.0, 120.0), (72.0, 192.0, 360.0), (120.0, 360.0, 720.0))


def quintic(
    points: Tensor,
    times: Tensor | Sequence[float],
    *,
    start: State | None = None,
    goal: State | None = None,
    velocities: Tensor | None = None,
    accelerations: Tensor | None = None,
) -> Spline:
    r"""The curve of least squared jerk through points at given times: a piecewise quintic.

    .. math:: \min \int \dddot q(t)^2 \, dt \quad \text{with} \quad q(t_i) = p_i

    Velocities and accelerations that are not given are free and become those of the minimum,
    which has four continuous derivatives. They solve a block tridiagonal system, in time linear in
    the number of points. Differentiable in the points, the times and all that is given.

    Arguments:
        points: ``[..., count, dof]``, in the unit of a joint, ``count >= 2``.
        times: ``[count]`` or ``[..., count]`` seconds, increasing.
        start: velocity and acceleration at the first point; `rest` if left out, `free` to leave
            them to the minimum.
        goal: the same at the last point.
        velocities: ``[..., count, dof]``, if they are known at every point.
        accelerations: ``[..., count, dof]``, if they are known at every point.

    Returns:
        a `Spline` with the times as knots, in the dtype of the points (computed in float64).

    Raises:
        ArgumentError: shapes, batches or devices that do not fit, times that do not increase, or
            two so near one another that rounding decides between them, a position or jerk in
            ``start`` or ``goal``, too little to determine the curve.
        ArgumentTypeError: arguments of a wrong type.

    Example:
        >>> import torch
        >>> points = torch.tensor([[0.0], [1.0], [0.5]])
        >>> motion = quintic(points, [0.0, 1.0, 2.0]).sample([0.0, 0.5, 1.0, 1.5, 2.0])
        >>> motion.position[::2].flatten().tolist()
        [0.0, 1.0, 0.5]

    Source: Flash and Hogan, The coordination of arm movements, 1985, for the least jerk;
    de Boor, A Practical Guide to Splines, chapter XIII, for its optimality among splines.
    """
    check_points(points, what="points", least=2)
    times = normalise_times(times, points)
    exact = points.to(torch.float64)
    knots = times.to(torch.float64)
    scale = ((knots[..., -1:] - knots[..., :1]) / (points.shape[-2] - 1)).unsqueeze(-1)
    every = {"velocity": velocities, "acceleration": accelerations}
    known, is_known = _known(exact, scale, start, goal, every)
    ratio = knots.diff(dim=-1) / scale.squeeze(-1)
    solved = _minimise(exact, ratio, known, is_known)
    velocity, acceleration = solved[..., 0, :] / scale, solved[..., 1, :] / scale**2
    coefficients = hermite(exact, velocity, acceleration, knots.diff(dim=-1))
    return Spline(knots, coefficients.to(points.dtype))


def hermite(position: Tensor, velocity: Tensor, acceleration: Tensor, width: Tensor) -> Tensor:
    """The quintics between knots with given derivatives, as coefficients of a `Spline`.

    From ``[..., count, dof]`` and widths ``[..., count - 1]`` in seconds, between the knots, to
    ``[..., count - 1, 6, dof]``.
    """
    w = width.unsqueeze(-1)
    ends = [
        part
        for side in (slice(None, -1), slice(1, None))
        for part in (
            position[..., side, :] - position[..., :-1, :],
            velocity[..., side, :] * w,
            acceleration[..., side, :] * w**2,
        )
    ]
    batch = broadcast_shapes(*(part.shape for part in ends))
    stacked = torch.stack([part.expand(batch) for part in ends], dim=-2)
    table = torch.tensor(_HERMITE, dtype=stacked.dtype, device=stacked.device)
    # Relative to the first position of the segment: no cancellation between large positions.
    coefficients = table @ stacked
    first = position[..., :-1, :].expand(coefficients[..., 0, :].shape)
    return torch.cat([first.unsqueeze(-2), coefficients[..., 1:, :]], dim=-2)


def _known(
    points: Tensor,
    scale: Tensor,
    start: State | None,
    goal: State | None,
    every: dict[str, Tensor | None],
) -> tuple[Tensor, list[bool]]:
    """What is known of ``(v0, a0, v1, a1, ...)`` in units of ``scale``, zero elsewhere."""
    count, columns, known = points.shape[-2], [], []
    for name, state in (("start", start), ("goal", goal)):
        if state is not None:
            _check_end(name, state, points, every)
    ends = ((0, rest if start is None else start), (count - 1, rest if goal is None else goal))
    unit = torch.eye(count, dtype=points.dtype, device=points.device).unsqueeze(-1)
    for order, (part, values) in enumerate(every.items(), 1):
        column, given = torch.zeros_like(points), [values is not None] * count
        if values is not None:
            column = _at_every_point(part, values, points)
        for place, end in ends:
            if values is None and part in end.given:
                column, given[place] = column + unit[place] * state_part(end, part, points), True
        columns.append(column * scale**order)
        known.append(given)
    is_known = [one for both in zip(*known, strict=True) for one in both]
    if count + sum(is_known) < 3:
        raise ArgumentError(
            "There is too little to determine the curve of least jerk.",
            given=f"{count} points and {sum(is_known)} derivatives",
            expected="3 conditions or more",
            mend="Give a velocity or an acceleration in start or goal.",
        )
    return torch.stack(torch.broadcast_tensors(*columns), dim=-2).flatten(-3, -2), is_known


def _at_every_point(part: str, values: Tensor, points: Tensor) -> Tensor:
    check_points(values, what=f"{part} values", least=2)
    if values.shape[-2:] != points.shape[-2:]:
        raise ArgumentError(
            f"There must be one {part} for each point.",
            given=f"{tuple(values.shape)} beside points {tuple(points.shape)}",
        )
    check_batch(part, values.shape[:-2], points)
    return values.to(torch.float64)


def _check_end(name: str, state: State, points: Tensor, every: dict[str, Tensor | None]) -> None:
    check_state(name, state, points)
    for part in state.given:
        if part not in every:
            raise ArgumentError(
                f"The {part} of the {name} cannot be given to a quintic.",
                expected="velocity and acceleration: the positions are those of the points, and "
                "the jerk is that of the minimum",
                mend=f"Leave it out: State(velocity=..., acceleration=...) as the {name}.",
            )
        if every[part] is not None:
            raise ArgumentError(
                f"The {part} of the {name} is given twice.",
                given=f"{name}.{part} and one {part} for each point",
                mend=f"Leave the {part} out of the {name}.",
            )


def _minimise(points: Tensor, ratio: Tensor, known: Tensor, is_known: list[bool]) -> Tensor:
    """The velocities and accelerations ``[..., count, 2, dof]`` that minimise the squared jerk.

    The slope of the quadratic form in them is zero where they are free.
    """
    form, moved = _energies(ratio)
    known = known.unflatten(-2, (-1, 2))
    given = torch.cat([known[..., :-1, :, :], known[..., 1:, :, :]], dim=-2)
    slope = _at_points(form @ given + moved * points.diff(dim=-2).unsqueeze(-2))
    fixed = torch.tensor(is_known, dtype=torch.float64, device=points.device).view(-1, 2, 1)
    free = 1 - fixed
    diagonal = _pad(form[..., :2, :2], 0, 1) + _pad(form[..., 2:, 2:], 1, 0)
    one = torch.eye(2, dtype=fixed.dtype, device=fixed.device)
    diagonal = diagonal * free * free.mT + fixed * one
    below = form[..., 2:, :2] * free[1:] * free[:-1].mT
    shortest, longest = ratio.detach().aminmax(dim=-1)
    if somewhere(shortest < _SHORT * longest):
        _check_found(diagonal.detach(), below.detach())
    return _solve(diagonal, below, fixed * known - free * slope)


def _check_found(diagonal: Tensor, below: Tensor) -> None:
    """Refuse a system that rounding has left no curve: by a solution that is known beforehand.

    Beside the energy of a short segment that of its neighbours is rounded, with the cube of their
    ratio. Where nothing else holds the derivatives, such as a third point, they decide.
    """
    known = diagonal.diagonal(dim1=-2, dim2=-1).rsqrt().unsqueeze(-1)
    before, after = below @ known[..., :-1, :, :], below.mT @ known[..., 1:, :, :]
    force = diagonal @ known + _pad(before, 1, 0) + _pad(after, 0, 1)
    try:
        off = (_solve(diagonal, below, force) / known - 1).abs()
    except torch.linalg.LinAlgError:
        off = torch.full_like(known, torch.nan)
    if somewhere(~(off <= _FOUND)):
        raise ArgumentError(
            "Two points are so near in time that rounding decides how the curve goes on.",
            given=f"derivatives that are off by {float(innermost(off).max()):.2g} of themselves",
            expected=f"{_FOUND:g} at most",
            mend="Merge the two points, or give velocities and accelerations at every point.",
        )


def _pad(x: Tensor, before: int, after: int) -> Tensor:
    """Blocks of zeros before and after ``[..., count, rows, columns]``."""
    return torch.nn.functional.pad(x, (0, 0, 0, 0, before, after))


def _at_points(segments: Tensor) -> Tensor:
    """What segments ask for at both of their ends ``[..., count - 1, 4, dof]``, added up."""
    return _pad(segments[..., :2, :], 0, 1) + _pad(segments[..., 2:, :], 1, 0)


def _solve(diagonal: Tensor, below: Tensor, right: Tensor) -> Tensor:
    """A definite block tridiagonal system by cyclic reduction: every other block at once.

    Blocks are ``[..., count, 2, 2]``, those below the diagonal one fewer. What is left of the
    even ones is a system of half the size.

    Source: Golub and Van Loan, Matrix Computations, section 4.5.4.
    """
    count = diagonal.shape[-3]
    # Not torch.linalg.solve: in torch 2.13 the derivative of its forward mode is wrong.
    if count == 1:
        return torch.linalg.inv(diagonal) @ right
    odds, evens = count // 2, count - count // 2
    lower = below[..., 0::2, :, :]
    upper = _pad(below[..., 1::2, :, :], 0, 2 * odds - count + 1)
    inverse = torch.linalg.inv(diagonal[..., 1::2, :, :])
    to_left, to_right = inverse @ lower, inverse @ upper.mT
    own = inverse @ right[..., 1::2, :, :]

    def even(whole: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """What is there, less what the odd blocks on its right and on its left take."""
        taken = _pad(left, 0, evens - odds) + _pad(right[..., : evens - 1, :, :], 1, 0)
        return whole[..., 0::2, :, :] - taken

    x = _solve(
        even(diagonal, lower.mT @ to_left, upper @ to_right),
        -(upper @ to_left)[..., : evens - 1, :, :],
        even(right, lower.mT @ own, upper @ own),
    )
    after = _pad(x[..., 1:, :, :], 0, odds - evens + 1)
    odd = own - to_left @ x[..., :odds, :, :] - to_right @ after
    both = torch.stack([x, _pad(odd, 0, evens - odds)], dim=-3)
    return both.flatten(-4, -3)[..., :count, :, :]


def _energies(ratio: Tensor) -> tuple[Tensor, Tensor]:
    """The quadratic form of the squared jerk on each segment in what it has at its two ends.

    Of velocities and accelerations ``[..., segments, 4, 4]``, and of them and the difference of the
    two positions ``[..., segments, 4, 1]``.
    """
    table = torch.tensor(_HERMITE, dtype=torch.float64, device=ratio.device)[3:]
    form = table.T @ torch.tensor(_JERK, dtype=torch.float64, device=ratio.device) @ table
    free = form[[1, 2, 4, 5]]
    units = torch.stack([ratio, ratio**2] * 2, dim=-1).unsqueeze(-1)
    moved, own = free[:, 3:4] * units, free[:, [1, 2, 4, 5]] * units * units.mT
    whole = (ratio**5)[..., None, None]
    return own / whole, moved / whole
