"""`minimum_duration`: a motion that hurries, each segment with a duration of its own."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, UnsupportedError
from pullback.internal.torch import are_functorch_transforms_active, run_eagerly
from pullback.trajectory._motion import Motion
from pullback.trajectory._state import State, rest
from pullback.trajectory.curves._quintic import quintic
from pullback.trajectory.curves._spline import Spline
from pullback.trajectory.kernels.programs import keep_limits
from pullback.trajectory.plans._limits import Limits, check_limits, range_of
from pullback.trajectory.plans._minimum_jerk import minimum_jerk
from pullback.trajectory.plans._minimum_time import check_duration
from pullback.trajectory.plans._plan import POWERS, SAMPLES, Plan, make_plan
from pullback.trajectory.plans._rows import check_given, check_room, problem_of
from pullback.trajectory.plans._stretch import keeps_zero, stands_still
from pullback.trajectory.plans._within import combine

__all__ = ["minimum_duration"]

_ROUNDS = 20
# Whole steps would overshoot: neighbours share their velocities.
_DAMPING = 0.3
# How many places of a segment are looked at.
_PLACES = 17
_PRECISION = 1e-3
_REST = {"velocity", "acceleration"}
_LONGEST = 1024.0
# Where longer is not always easier, durations are tried from here on, at such distances.
_SHORTEST = 1 / 32
_STRIDE = 1.07
# Of a limit, where nothing in its direction moves.
_NOTHING = 1e-12
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

    Where ends move, or a range leaves zero out, a longer duration may break what a shorter one
    keeps. Durations are then tried upward, from a thirty-second of that of the motion at rest, each
    7 % longer than the one before, and from the first at which limits can be kept the motion is
    shortened as said: a thousandth less would not do, yet shorter durations that do are overlooked
    where they span less than 7 %. Proportions are those of ends at rest, those of the lengths of
    the segments or half-way between them, whichever is the fastest.

    Without the package numba, what a quick method does not find counts as not to be kept: limits
    hold all the same, and durations may be longer.

    Differentiable in points and limits as `minimum_jerk` at the times that were found: they are
    constants. Under torch.compile it runs outside of the graph, which ends before it. The times
    of the points are not returned; they are where the motion meets them.

    Arguments:
        points: ``[..., count, dof]``, in the unit of a joint; neighbours differ in some joint.
        limits: ranges of velocity, acceleration, jerk and position; one of the first three.
        start: velocity, acceleration and jerk at the first point; those left out are free.
        goal: the same at the last point.
        samples: how many samples, evenly spaced in time, the ends included.

    Returns:
        a motion ``[..., samples, dof]``.

    Raises:
        ArgumentError: as `minimum_jerk`, no limit on a derivative, neighbouring points that are
            alike, or limits that were kept at none of the durations tried.
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
        >>> flying = State(velocity=1.0)
        >>> fast = minimum_duration(points, Limits(velocity=1.0), start=flying, goal=flying)
        >>> round(fast.times[-1].item(), 2), fast.velocity[0].item()
        (5.0, 1.0)
    """
    if are_functorch_transforms_active():
        raise UnsupportedError(
            "minimum_duration searches for durations, which a transform cannot follow.",
            given="a call inside of torch.func",
            mend="Find the motion outside, and use minimum_jerk at its times inside.",
        )
    make_plan(points, None, duration=1.0, start=start, goal=goal, samples=samples, order=3)
    check_limits(limits, points)
    check_duration(limits, points)
    fixed = Limits(
        **{kind: _constant(getattr(limits, kind)) for kind in limits.given}, between=limits.between
    )
    known = points.detach()
    times = _proportions(known, fixed, start, goal, samples)
    if stands_still(start, goal) and keeps_zero(limits):
        times = _shorten(known, times, fixed, start, goal, samples, _doubled)
    else:
        times = _fastest(known, times, fixed, start, goal, samples)
    found = minimum_jerk(points, times, start=start, goal=goal, limits=limits, samples=samples)
    return replace(found, start_time=None)


# Trial durations that do not keep the limits are no errors, as they would be in a graph.
run_eagerly(
    minimum_duration,
    "minimum_duration searches for durations, which no graph can hold: call it outside of it",
)


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
    begin, end = (State(**dict.fromkeys(_REST & set(it.given), 0.0)) for it in (start, goal))
    # A segment of unlimited least jerk takes the cube root of its length, at a given jerk.
    width = size ** (1 / 3)
    chosen = torch.full_like(exact[..., 0], torch.inf)
    for _ in range(_ROUNDS if size.shape[-1] > 1 else 1):
        share = _shares(width, samples)
        times = torch.nn.functional.pad(share.cumsum(-1), (1, 0))
        needed = _needed(quintic(exact, times, start=begin, goal=end), limits)
        found = times * needed.amax(-1, keepdim=True)
        chosen = torch.where(found[..., -1:] < chosen[..., -1:], found, chosen)
        width = share * needed**_DAMPING
    return chosen


def _shares(width: Tensor, samples: int) -> Tensor:
    """Widths as parts of their sum, neighbours not too close for the samples."""
    least = _APART / (samples - 1)
    return least + (1 - least * width.shape[-1]) * width / width.sum(-1, keepdim=True)


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
            # Beyond zero on either side, as a part of what there is to that side, if any.
            above = torch.where(upper > 0, value / upper, -torch.inf)
            level = torch.maximum(above, torch.where(lower < 0, value / lower, -torch.inf))
            stretches.append(level.amax((-2, -1)).clamp(min=_NOTHING) ** (1 / order))
    return torch.stack(stretches).amax(0)


def _fastest(  # noqa: PLR0917 - as below
    points: Tensor, times: Tensor, limits: Limits, start: State, goal: State, samples: int
) -> Tensor:
    """The times of the shortest motion of three proportions.

    Raises:
        ArgumentError: a trajectory keeps its limits at none of the durations tried.
    """
    length = points.to(torch.float64).diff(dim=-2).abs().amax(-1)
    widths = [times.diff(dim=-1) / times[..., -1:], length / length.sum(-1, keepdim=True)]
    widths = torch.broadcast_tensors(*widths)
    width = torch.stack([widths[0], (widths[0] * widths[1]).sqrt(), widths[1]])
    # Only what is too near for the samples is moved apart.
    share = _shares((width - _APART / (samples - 1)).clamp(min=0), samples)
    share = share.cumsum(-1) * times[..., -1:]
    tried = torch.nn.functional.pad(share, (1, 0))
    tried = _shorten(points, tried, limits, start, goal, samples, _climbed)
    seconds, which = tried[..., -1].min(0)
    if bool(seconds.isinf().any()):
        raise ArgumentError(
            "The limits were kept at no duration that was tried.",
            given=f"durations up to {_LONGEST:g} times that of the unlimited motion at rest",
            expected="wider limits, or slower ends",
            mend="Call minimum_jerk with limits and a duration to be told which cannot be met.",
        )
    return tried.gather(0, which[None, ..., None].expand(1, *tried.shape[1:])).squeeze(0)


def _shorten(  # noqa: PLR0917 - what belongs together
    points: Tensor,
    times: Tensor,
    limits: Limits,
    start: State,
    goal: State,
    samples: int,
    search: Callable[[Callable[[Tensor], Tensor], Tensor], tuple[Tensor, Tensor]],
) -> Tensor:
    """The times as near to zero as limits can be kept at, or infinity."""
    plan = make_plan(points, times, duration=None, start=start, goal=goal, samples=samples, order=3)
    check_given(plan, limits)
    check_room(plan, limits)
    basis = plan.basis()

    def kept(factor: Tensor) -> Tensor:
        step = plan.step * factor
        if not bool(_fast_enough(plan, limits, step).any()):
            return torch.zeros_like(step, dtype=torch.bool)
        _, found = keep_limits(problem_of(plan, combine(basis, plan.values(step)), limits, step))
        return found.all(-1)

    with torch.no_grad():
        low, high = search(kept, torch.ones_like(times[..., -1]))
        never = high.isinf()
        low, high = low.masked_fill(never, 1.0), high.masked_fill(never, 1.0)
        while bool((high > low * (1 + _PRECISION)).any()):
            middle = (low * high).sqrt()
            fits = kept(middle)
            high, low = torch.where(fits, middle, high), torch.where(fits, low, middle)
    return (times * high.unsqueeze(-1)).masked_fill(never.unsqueeze(-1), torch.inf)


def _fast_enough(plan: Plan, limits: Limits, step: Tensor) -> Tensor:
    """Whether mean speeds are within the limit, without which nothing is: quick to see."""
    if "velocity" not in limits.given:
        return torch.ones_like(step, dtype=torch.bool)
    lower, upper = (end.unsqueeze(-2) for end in range_of(limits, "velocity", plan.points))
    mean = plan.points.diff(dim=-2) / (plan.places.diff(dim=-1) * step.unsqueeze(-1)).unsqueeze(-1)
    return ((mean <= upper) & (mean >= lower)).all(-1).all(-1)


def _doubled(kept: Callable[[Tensor], Tensor], one: Tensor) -> tuple[Tensor, Tensor]:
    """Factors between which limits begin to be kept, where they stay so."""
    high, low = one, one / _LONGEST
    while not bool((fits := kept(high)).all()) and bool((high < _LONGEST).all()):
        high, low = torch.where(fits, high, 2 * high), torch.where(fits, low, high)
    return low, high


def _climbed(kept: Callable[[Tensor], Tensor], one: Tensor) -> tuple[Tensor, Tensor]:
    """Factors between which limits are first kept of those tried, infinity where at none."""
    high, low, factor = one * torch.inf, one / _LONGEST, one * _SHORTEST
    while bool((waits := high.isinf()).any()) and bool((factor < _LONGEST).all()):
        fits = waits & kept(factor)
        high, low = torch.where(fits, factor, high), torch.where(waits & ~fits, factor, low)
        factor = factor * _STRIDE
    return low, high
