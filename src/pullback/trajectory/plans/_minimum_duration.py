"""`minimum_duration`: a motion that hurries, each segment with a duration of its own."""

import math
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, UnsupportedError
from pullback.internal.torch import are_functorch_transforms_active
from pullback.trajectory._motion import Motion
from pullback.trajectory._state import State, rest
from pullback.trajectory.curves._quintic import quintic
from pullback.trajectory.curves._spline import Spline
from pullback.trajectory.kernels.programs import keep_limits
from pullback.trajectory.plans._limits import Limits, check_limits, range_of
from pullback.trajectory.plans._minimum_jerk import minimum_jerk
from pullback.trajectory.plans._minimum_time import check_stretch
from pullback.trajectory.plans._plan import SAMPLES, make_plan
from pullback.trajectory.plans._rows import POWERS, check_given, problem_of
from pullback.trajectory.plans._within import combine

__all__ = ["minimum_duration"]

_ROUNDS = 20
# Whole steps would overshoot: neighbours share their velocities.
_DAMPING = 0.3
# How many places of a segment are looked at.
_PLACES = 17
_PRECISION = 1e-3
_LONGEST = 1024.0
# Neighbouring points keep this many samples apart.
_APART = 1.5


def minimum_duration(
    points: Tensor,
    limits: Limits,
    *,
    start: State = rest,
    goal: State = rest,
    samples: int = SAMPLES,
) -> Motion:
    """The motion of least jerk in the shortest time in which it can keep its limits.

    `minimum_time` stretches all times alike, and the motion meets a limit at one instant. Here each
    segment has a duration of its own, and the motion goes along its limits: first the proportions
    are those with which each segment of the unlimited motion meets a limit, as nearly as found;
    then the whole is shortened while limits can be kept. At these proportions the duration is the
    least to a thousandth; other proportions may be faster still.

    Differentiable in points and limits as `minimum_jerk` at the times that were found: they are
    constants. The times of the points are not returned; they are where the motion meets them.

    Arguments:
        points: ``[..., count, dof]``, in the unit of a joint; neighbours differ in some joint.
        limits: ranges of velocity, acceleration, jerk and position; one of the first three.
        start: `rest`, `hold`, `free` or a state of zeros.
        goal: the same at the last point.
        samples: how many samples, evenly spaced in time, the ends included.

    Returns:
        a motion ``[..., samples, dof]``.

    Raises:
        ArgumentError: as `minimum_time` and `minimum_jerk`, or neighbouring points that are alike.
        ArgumentTypeError: arguments of a wrong type.
        UnsupportedError: under a transform of torch.func, where durations cannot be searched for.

    Example:
        >>> import torch
        >>> from pullback.trajectory import Limits, minimum_duration, minimum_time
        >>> points = torch.tensor([[0.0], [0.1], [5.0]])
        >>> slow = minimum_time(points, Limits(velocity=1.0))
        >>> fast = minimum_duration(points, Limits(velocity=1.0))
        >>> round(slow.times[-1].item(), 1), fast.times[-1].item() < 5.6
        (15.3, True)
    """
    if are_functorch_transforms_active():
        raise UnsupportedError(
            "minimum_duration searches for durations, which a transform cannot follow.",
            given="a call inside of torch.func",
            mend="Find the motion outside, and use minimum_jerk at its times inside.",
        )
    plan = make_plan(points, None, duration=1.0, start=start, goal=goal, samples=samples, order=3)
    check_limits(limits, points)
    check_stretch(plan, limits)
    fixed = Limits(
        **{kind: _constant(getattr(limits, kind)) for kind in limits.given}, between=limits.between
    )
    times = _shorten(points.detach(), _proportions(points.detach(), fixed, start, goal, samples),
                     fixed, start, goal, samples)  # fmt: skip
    return minimum_jerk(points, times, start=start, goal=goal, limits=limits, samples=samples)


def _constant(limit: Any) -> Any:
    if isinstance(limit, tuple):
        return tuple(_constant(end) for end in limit)
    return limit.detach() if isinstance(limit, Tensor) else limit


def _proportions(points: Tensor, limits: Limits, start: State, goal: State, samples: int) -> Tensor:
    """Times ``[..., count]`` at which each segment of the unlimited motion nears its own limits.

    Segments that could be faster are shortened and the others stretched, again and again; the
    fastest of the motions found is taken. They are the continuous ones, whose system has the size
    of the points.
    """
    exact = points.to(torch.float64)
    size = exact.diff(dim=-2).abs().amax(-1)
    if not bool((size > 0).all()):
        raise ArgumentError(
            "Neighbouring points are alike, so the segment between them has no least duration.",
            given=f"segment {tuple((size == 0).nonzero()[0].tolist())}",
            mend="Leave one of them out.",
        )
    begin, end = (State(velocity=it.velocity, acceleration=it.acceleration) for it in (start, goal))
    least = _APART / (samples - 1)
    # A segment of unlimited least jerk takes the cube root of its length, at a given jerk.
    width = size ** (1 / 3)
    chosen = torch.full_like(exact[..., 0], torch.inf)
    for _ in range(_ROUNDS if size.shape[-1] > 1 else 1):
        # Neighbours are not too close for the samples.
        share = least + (1 - least * width.shape[-1]) * width / width.sum(-1, keepdim=True)
        times = torch.nn.functional.pad(share.cumsum(-1), (1, 0))
        needed = _needed(quintic(exact, times, start=begin, goal=end), limits)
        found = times * needed.amax(-1, keepdim=True)
        chosen = torch.where(found[..., -1:] < chosen[..., -1:], found, chosen)
        width = share * needed**_DAMPING
    return chosen


def _needed(curve: Spline, limits: Limits) -> Tensor:
    """By how much a motion must be stretched to keep its limits in each segment: ``[..., n]``."""
    coefficients, width = curve.coefficients, curve.knots.diff(dim=-1)[..., None, None]
    s = torch.linspace(0, 1, _PLACES, dtype=torch.float64, device=width.device)
    stretches = []
    for kind, order in POWERS.items():
        if order and kind in limits.given:
            powers = [math.perm(k, order) * s ** (k - order) for k in range(order, 6)]
            value = torch.stack(powers, -1) @ coefficients[..., order:, :] / width**order
            lower, upper = (end[..., None, None, :] for end in range_of(limits, kind, coefficients))
            # Beyond zero on either side, as a part of what there is to that side.
            level = torch.maximum(value / upper, value / lower)
            stretches.append(level.amax((-2, -1)) ** (1 / order))
    return torch.stack(stretches).amax(0)


def _shorten(  # noqa: PLR0917 - what belongs together
    points: Tensor, times: Tensor, limits: Limits, start: State, goal: State, samples: int
) -> Tensor:
    """The times as near to zero as limits can be kept at."""
    plan = make_plan(points, times, duration=None, start=start, goal=goal, samples=samples, order=3)
    check_given(plan, limits)
    basis = plan.basis()

    def kept(factor: Tensor) -> Tensor:
        step = plan.step * factor
        _, found = keep_limits(problem_of(plan, combine(basis, plan.values(step)), limits, step))
        return found.all(-1)

    with torch.no_grad():
        high = torch.ones_like(times[..., -1])
        low = torch.full_like(high, 1 / _LONGEST)
        while not bool((fits := kept(high)).all()) and bool((high < _LONGEST).all()):
            high, low = torch.where(fits, high, 2 * high), torch.where(fits, low, high)
        while bool((high > low * (1 + _PRECISION)).any()):
            middle = (low * high).sqrt()
            fits = kept(middle)
            high, low = torch.where(fits, middle, high), torch.where(fits, low, middle)
    return times * high.unsqueeze(-1)
