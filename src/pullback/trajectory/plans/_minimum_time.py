"""`minimum_time`: the shape of least jerk, as fast as limits allow."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.torch import forward_level, is_functorch_wrapped_tensor
from pullback.trajectory._checks import check_choice, concrete, somewhere
from pullback.trajectory._limits import Limits, check_limits
from pullback.trajectory._motion import Motion
from pullback.trajectory._seconds import check_span
from pullback.trajectory._state import State, rest
from pullback.trajectory.kernels.states._dispatch import ROWS
from pullback.trajectory.plans._plan import (
    POWERS,
    SAMPLES,
    Plan,
    inner_rows,
    make_plan,
    row_forms,
    to_motion,
)
from pullback.trajectory.plans._rows import (
    aim_of,
    check_decided,
    check_given,
    row_kinds,
)

__all__ = ["check_duration", "minimum_time", "stands_still"]

# Of the reach of a motion, what is rounding of its differences from sample to sample: 1,024 samples
# make 1e-16 of it of a jerk of zero.
_ROUNDING = 64 * torch.finfo(torch.float64).eps
# Of half the width of a range, for what rounding leaves of a row that is met.
_SPARE = 2e-9


def minimum_time(
    points: Tensor,
    limits: Limits,
    *,
    times: Tensor | Sequence[float] | None = None,
    start: State = rest,
    goal: State = rest,
    samples: int = SAMPLES,
    order: int = 3,
) -> Motion:
    r"""The motion of least jerk in the least duration that keeps it within limits.

    .. math:: T = \max_{k, t} \Big( \frac{|q^{(k)}(t)|}{l_k} \Big)^{1/k}
        \text{ of the motion in one second}

    The duration is the variable: all times are stretched alike until the first limit is met, and
    the motion of least jerk without limits keeps them. `minimum_jerk` with limits may be faster,
    at more jerk: it moves at a limit for longer.

    Ends that move do not stretch with time: the motion would change its shape with the duration,
    so they are refused, and `minimum_duration` is for them.

    Differentiable in points, times and limits, to any order: the derivative is that of the limit
    that is met, and of one of them where several are met at once.

    Arguments:
        points: ``[..., count, dof]``, in the unit of a joint; all joints of a trajectory share
            its duration.
        limits: ranges of velocity, acceleration, jerk and position; one of the first three.
        times: ``[count]`` or ``[..., count]``, increasing, of which only the proportions count;
            evenly spaced if left out.
        start: velocity, acceleration and jerk at the first point, all zero; those left out are
            free.
        goal: the same at the last point.
        samples: how many samples, evenly spaced in time, the ends included.
        order: 3 for least jerk, 2 for least acceleration.

    Returns:
        a motion ``[..., samples, dof]``; its duration is that of its ``dt``.

    Raises:
        ArgumentError: no limit, an end beyond its limit or that moves, a motion that stands still,
            limits that no duration keeps, and as `minimum_jerk`.
        ArgumentTypeError: arguments of a wrong type.

    Example:
        >>> import torch
        >>> motion = minimum_time(torch.tensor([[0.0], [1.0]]), Limits(velocity=1.5))
        >>> round(motion.times[-1].item(), 3), round(motion.velocity.max().item(), 3)
        (1.25, 1.5)

    Source: Hollerbach, Dynamic scaling of manipulator trajectories, 1984.
    """
    check_choice("order", order, (2, 3))
    plan = make_plan(
        points,
        times,
        duration=1.0 if times is None else None,
        start=start,
        goal=goal,
        samples=samples,
        order=order,
    )
    check_limits(limits, points)
    check_duration(limits, points)
    check_given(plan, limits)
    _check_still(start, goal)
    x = plan.least(plan.step)
    step = _least_step(plan, x, limits)
    if "position" in limits.given:  # others are kept by the step
        check_decided(plan, x, limits, step)
    check_span("samples of least duration", step * (plan.samples - 1))
    return replace(to_motion(plan, x, step), start_time=None)


def check_duration(limits: Limits, points: Tensor) -> None:
    """Refuse what has no least duration."""
    if not points.shape[-1]:
        raise ArgumentError(
            "Without joints there is no least duration.",
            given=f"points {tuple(points.shape)}",
            expected="one joint or more",
        )
    if not set(limits.given) - {"position"}:
        raise ArgumentError(
            "Without limits there is no least duration.",
            given=f"limits on {', '.join(limits.given) or 'nothing'}",
            expected="a limit on velocity, acceleration or jerk",
        )


def stands_still(*ends: State) -> bool:
    """Whether nothing that is given at an end moves, as far as can be read."""
    return all(_is_zero(getattr(end, part)) for end in ends for part in end.given)


def _is_zero(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_zero, value))
    if not isinstance(value, Tensor):
        return value == 0
    known = concrete(value)
    return known is not None and not bool(known.any())


def _check_still(*ends: State) -> None:
    """Refuse ends that move, and zeros whose derivative is asked for: the stretch has none."""
    parts = [getattr(end, part) for end in ends for part in end.given]
    followed = any(
        part.requires_grad or is_functorch_wrapped_tensor(part) or forward_level() >= 0
        for part in parts
        if isinstance(part, Tensor)
    )
    if followed or not stands_still(*ends):
        raise ArgumentError(
            "The motion of least time begins and ends at rest: ends that move do not stretch.",
            given="derivatives at an end that are not zero, are followed or cannot be read",
            expected="rest, hold, free or a State of zeros",
            mend="Use minimum_duration, or minimum_jerk with limits, which bend the motion.",
        )


def _least_step(plan: Plan, x: Tensor, limits: Limits) -> Tensor:
    """Seconds between samples at which the first limit is met: ``[...]``."""
    rounding = _ROUNDING * plan.points.detach().abs().amax((-2, -1))[..., None, None]
    candidates = []
    for kind in row_kinds(plan, limits):
        power = POWERS[ROWS[kind].limit]
        ends = aim_of(plan, limits, ROWS[kind].limit, _SPARE if power else 0.0)
        lower, upper = (end.unsqueeze(-1) for end in ends)
        value = (row_forms((kind,), x.device) @ x).squeeze(-2)
        if not power:
            free = plan.free((kind,))
            _check_place(value, lower, upper, free)
            continue
        # Beyond zero on either side, as a part of what there is to that side, which may be nothing.
        inner = inner_rows((kind,), plan.samples, value.device)
        value = torch.where(inner & (value.abs() > rounding), value, 0.0)
        peak = torch.maximum(_part(value, upper), _part(-value, -lower))
        peak = torch.where((lower > 0) | (upper < 0), torch.inf, peak)
        # Of two that are met at once one has the derivative: amax would give its mean, of no side.
        peak = peak.flatten(-2).max(-1).values
        # The root of a peak of zero has no derivative; it is never the largest of a motion.
        root = torch.where(peak > 0, peak, 1.0) ** (1 / power)
        candidates.append(torch.where(peak > 0, root, 0.0))
    step = torch.stack(torch.broadcast_tensors(*candidates)).max(0).values
    if somewhere(~(step > 0)):
        raise ArgumentError(
            "A motion stands still, or needs nothing of what is limited: every duration would do.",
            given="points that are all alike, or on a line with a limit on its jerk",
            expected="a limit that a short motion exceeds, such as one on velocity",
        )
    if somewhere(step.isinf()):
        raise ArgumentError(
            "The motion of least jerk keeps the limits at no duration.",
            given="a range that leaves zero out, or that ends there with a motion that goes beyond",
            expected="wider limits",
            mend="Use minimum_duration, or minimum_jerk with limits, which bend the motion.",
        )
    return step


def _part(value: Tensor, room: Tensor) -> Tensor:
    """How much of the room on one side of zero a value takes: infinitely much if there is none."""
    some = value / torch.where(room > 0, room, 1.0)
    return torch.where(room > 0, some, torch.where(value > 0, torch.inf, 0.0))


def _check_place(place: Tensor, lower: Tensor, upper: Tensor, mask: Tensor) -> None:
    """Refuse a motion that leaves the range of its position: no duration changes where it goes."""
    slack = 1e-12 * (upper - lower)  # a point on the limit is met to rounding
    excess = torch.maximum(place - upper, lower - place) - slack
    beyond = concrete((excess * mask).amax((-2, -1)))
    if beyond is None or bool((beyond > 0).any()):
        raise ArgumentError(
            "The limit on position is not kept, and no duration changes where the motion goes.",
            given="an unknown position"
            if beyond is None
            else f"up to {float(beyond.max()):.3g} beyond",
            expected="a motion of least jerk within the range",
            mend="Use minimum_duration, or minimum_jerk with limits and a duration.",
        )
