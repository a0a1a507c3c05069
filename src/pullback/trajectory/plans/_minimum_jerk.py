"""`minimum_jerk` and `minimum_acceleration`: sampled motions that are least, within limits."""

from collections.abc import Sequence

from torch import Tensor

from pullback.trajectory._limits import Limits, check_limits
from pullback.trajectory._motion import Motion
from pullback.trajectory._state import State, rest
from pullback.trajectory.plans._plan import SAMPLES, make_plan, to_motion
from pullback.trajectory.plans._within import least_motion

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
    plan = make_plan(
        points, times, duration=duration, start=start, goal=goal, samples=samples, order=3
    )
    if limits is not None:
        check_limits(limits, points)
    return to_motion(plan, least_motion(plan, limits), plan.step)


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
    plan = make_plan(
        points, times, duration=duration, start=start, goal=goal, samples=samples, order=2
    )
    if limits is not None:
        check_limits(limits, points)
    return to_motion(plan, least_motion(plan, limits), plan.step)
