"""`minimum_jerk` and `minimum_acceleration`: sampled motions that are least, within limits."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.torch import are_functorch_transforms_active
from pullback.trajectory._checks import concrete
from pullback.trajectory._limits import KINDS, Limits, check_limits
from pullback.trajectory._motion import Motion
from pullback.trajectory._state import State, rest
from pullback.trajectory.plans._plan import SAMPLES, Plan, make_plan, to_motion
from pullback.trajectory.plans._rows import (
    LONGEST,
    check_decided,
    check_given,
    check_room,
    keep_limits,
    miss_limits,
    shorten,
)

__all__ = ["minimum_acceleration", "minimum_jerk"]

_STILL = State(velocity=0.0)

Times = Tensor | Sequence[float] | float | None


def minimum_jerk(
    points: Tensor,
    times: Times = None,
    *,
    duration: Tensor | float | None = None,
    start: State = rest,
    goal: State = rest,
    limits: Limits | None = None,
    samples: int = SAMPLES,
) -> Motion:
    r"""The sampled motion of least squared jerk through points, within limits.

    .. math:: \min \int \dddot q^2 dt, \quad q(t_i) = p_i, \quad
        |\dot q| \le v, \; |\ddot q| \le a, \; |\dddot q| \le j

    The jerk is constant from sample to sample, so position, velocity and acceleration belong to
    one another exactly, the points are met at their times wherever these fall between samples,
    and limits on velocity, acceleration and jerk hold at every instant (that on velocity by the
    control points of each step), those on position at every sample.
    As samples grow the motion converges to `quintic` with the square of the step.

    Differentiable in points, times or duration, ends and limits, by the implicit function theorem
    at the solution; to second order, in forward mode and under vmap. Derivatives are those of the
    limits that the motion pushes against. Where a limit is just met and the motion does not push,
    the first derivative is that of the side on which the limit does not act, and there is no second
    one. Computed in float64 for any dtype.

    Arguments:
        points: ``[..., count, dof]``, in the unit of a joint, ``count >= 2``.
        times: ``[count]`` or ``[..., count]`` seconds, increasing; or one number, the duration.
        duration: seconds, a number or ``[...]``, instead of times: the points are evenly spaced.
        start: velocity, acceleration and jerk at the first point; those left out are free.
        goal: the same at the last point.
        limits: the ranges to keep; `None` for no limits.
        samples: how many samples, evenly spaced in time, the ends included; at most 2048.

    Returns:
        a motion ``[..., samples, dof]`` in the dtype of the points. The jerk of a sample is that
        of the step after it.

    Raises:
        ArgumentError: shapes, batches or devices that do not fit, times that do not increase, too
            few samples, or limits that cannot be met: it says which, and the least duration that
            would do.
        ArgumentTypeError: arguments of a wrong type.

    Example:
        >>> import torch
        >>> points = torch.tensor([[0.0], [1.0]])
        >>> free = minimum_jerk(points, 1.0)
        >>> slow = minimum_jerk(points, 1.0, limits=Limits(velocity=1.5))
        >>> round(free.velocity.max().item(), 3), round(slow.velocity.max().item(), 3)
        (1.875, 1.5)

    Source: Flash and Hogan, The coordination of arm movements, 1985.
    """
    asked = {"duration": duration, "start": start, "goal": goal, "samples": samples}
    return least_motion(make_plan(points, times, **asked, order=3), points, limits)


def minimum_acceleration(
    points: Tensor,
    times: Times = None,
    *,
    duration: Tensor | float | None = None,
    start: State = _STILL,
    goal: State = _STILL,
    limits: Limits | None = None,
    samples: int = SAMPLES,
) -> Motion:
    r"""The sampled motion of least squared acceleration through points, within limits.

    .. math:: \min \int \ddot q^2 dt, \quad q(t_i) = p_i, \quad
        |\dot q| \le v, \; |\ddot q| \le a, \; |\dddot q| \le j

    All else is as for `minimum_jerk`; the acceleration is continuous and linear from sample to
    sample. Without limits, and with points on samples, it is the cubic spline through the points.
    The ends have zero velocity and a free acceleration unless said otherwise.

    Arguments:
        points: ``[..., count, dof]``, in the unit of a joint, ``count >= 2``.
        times: ``[count]`` or ``[..., count]`` seconds, increasing; or one number, the duration.
        duration: seconds, a number or ``[...]``, instead of times: the points are evenly spaced.
        start: velocity, acceleration and jerk at the first point; those left out are free.
        goal: the same at the last point.
        limits: the ranges to keep; `None` for no limits.
        samples: how many samples, evenly spaced in time, the ends included; at most 2048.

    Returns:
        a motion ``[..., samples, dof]`` in the dtype of the points.

    Raises:
        ArgumentError: as `minimum_jerk`.
        ArgumentTypeError: as `minimum_jerk`.

    Example:
        >>> import torch
        >>> motion = minimum_acceleration(torch.tensor([[0.0], [1.0]]), 1.0, samples=5)
        >>> [round(q, 4) for q in motion.position.flatten().tolist()]
        [0.0, 0.1562, 0.5, 0.8438, 1.0]

    Source: de Boor, A Practical Guide to Splines, chapter V.
    """
    asked = {"duration": duration, "start": start, "goal": goal, "samples": samples}
    return least_motion(make_plan(points, times, **asked, order=2), points, limits)


# To which the least duration that would do is told, of itself.
_PRECISION = 1e-3


def least_motion(plan: Plan, points: Tensor, limits: Limits | None) -> Motion:
    """The least motion within limits."""
    if limits is not None:
        check_limits(limits, points)
    x = plan.least(plan.step)
    if limits is None or not limits.given:
        return to_motion(plan, x, plan.step)
    check_given(plan, limits)
    check_room(plan, limits)
    change, found = keep_limits(plan, x, limits, plan.step)
    known = concrete(found)
    if known is not None and not bool(known.all()):
        check_decided(plan, x, limits, plan.step)
        _refuse(plan, limits, known)
    return to_motion(plan, x + change, plan.step)


def _refuse(plan: Plan, limits: Limits, known: Tensor) -> None:
    blame = "limits on " + " and ".join(limits.given)
    given = f"{int((~known).sum())} of {known.numel()} joints cannot keep their limits"
    mend = "Allow more time or wider limits; minimum_time finds a fast motion within limits."
    if are_functorch_transforms_active():
        expected = "a longer duration or wider limits"
        raise ArgumentError(
            f"The {blame} cannot be met in the given time.",
            given=given,
            expected=expected,
            mend=mend,
        )
    failed = tuple((~known).nonzero()[0].tolist())
    place = f"joint {failed[-1]}" + (f" of trajectory {list(failed[:-1])}" if failed[:-1] else "")
    low, high = (float(bound[failed]) for bound in miss_limits(plan, limits, plan.step, 1e-3))
    if high < 1:
        raise ArgumentError(
            f"The {blame} leave so little room that the least motion within it was not found.",
            given=f"{place}, whose limits could be kept at {high:.7g} of their width",
            expected="limits that are two hundredths wider than they need to be",
            mend="Allow limits that are wider by 0.02, or fewer samples.",
        )
    if low <= 1:
        raise ArgumentError(
            f"Whether the {blame} can be met in the given time was not decided.",
            given=f"{place}, whose limits need to be between {low:.7g} and "
            f"{high:.7g} times as wide",
            mend=f"Allow limits that are wider by {high - 1:.2g}, or fewer samples.",
        )
    kinds = _blame(plan, limits, failed)
    raise ArgumentError(
        f"The {'limit' if len(kinds) == 1 else 'limits'} on {' and '.join(kinds)} "
        "cannot be met in the given time.",
        given=f"{given}; the first is {place}, whose limits would need to be "
        f"{low:.4g} times as wide",
        expected=_least_duration(plan, limits, known),
        mend=mend,
    )


def _blame(plan: Plan, limits: Limits, place: tuple[int, ...]) -> list[str]:
    """The fewest kinds of limits that one joint cannot keep together."""
    guilty = list(limits.given)
    for kind in limits.given:
        others = [other for other in guilty if other != kind]
        ranges = {other: getattr(limits, other) for other in others}
        some = Limits(**ranges, between=limits.between)
        if others and float(miss_limits(plan, some, plan.step)[0][place]) > 1:
            guilty = others
    return [kind for kind in KINDS if kind in guilty]


def _least_duration(plan: Plan, limits: Limits, known: Tensor) -> str:
    """The least duration that would do, all times stretched alike."""
    span = (plan.step.detach() * (plan.samples - 1)).expand(known.shape[:-1])
    low = torch.zeros_like(span)
    waits = ~known.all(-1).to(span.device)
    high = torch.where(waits, torch.inf, low)
    _, high = shorten(plan, limits, low, high, math.log1p(_PRECISION))
    if bool(high.isinf().any()):
        return f"wider limits: {LONGEST:g} times the duration would not do either"
    stretch = high.exp()
    longest, worst = torch.where(waits, span * stretch, 0.0).flatten().max(0)
    least = float(stretch.flatten()[worst])
    return f"a duration of {longest:.4g} s or more, {least:.4g} times as long"
