"""`minimum_duration`: a motion that hurries, each segment with a duration of its own."""

import math
from dataclasses import replace
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor

from pullback.errors import ArgumentError, UnsupportedError
from pullback.internal.torch import are_functorch_transforms_active, pytree, run_eagerly
from pullback.trajectory._checks import check_choice
from pullback.trajectory._limits import Limits, check_limits, range_of
from pullback.trajectory._motion import Motion
from pullback.trajectory._state import State, rest
from pullback.trajectory.plans._hurry import Hurry, moved_apart
from pullback.trajectory.plans._minimum_jerk import minimum_jerk
from pullback.trajectory.plans._minimum_time import check_duration, stands_still
from pullback.trajectory.plans._plan import POWERS, SAMPLES, Plan, make_plan
from pullback.trajectory.plans._rows import check_given, check_room

__all__ = ["DurationBounds", "minimum_duration"]

_PRECISION = 1e-3
# Of a length over a limit: a segment from rest to rest, at the limit all the time, takes a root.
_PROFILES = {"velocity": 1.0, "acceleration": 4.0, "jerk": 32.0}
_LONGEST = 1024.0
# Where longer is not always easier, durations are tried from here on, at such distances.
_SHORTEST = 1 / 32
_STRIDE = 1.07
# How near proportions are compared, and how far beside where limits are just kept it is tried
# whether they are, as a part of the precision.
_ROUGH, _BESIDE, _TURNS = 1e-2, 0.2, 64
# How needs fall with the duration, both as logarithms: at first, and at most and least.
_SLOPE, _SLOPES = -2.0, (-3.2, -0.3)
# Of the width of a range: nearer to zero an end is smaller than what rounding makes of a zero.
_INSIDE = 1e-6


class DurationBounds(NamedTuple):
    """What is known of the least duration, and the times of the points at which it was found.

    Arguments:
        low: ``[...]`` seconds: at the proportions of ``times`` no motion is as short, which a
            linear program proves; 0 where that was not proven.
        high: ``[...]`` seconds, in which limits are kept: the duration of the motion.
        times: ``[..., count]`` seconds, at which the motion meets the points.
    """

    low: Tensor
    high: Tensor
    times: Tensor


@overload
def minimum_duration(
    points: Tensor,
    limits: Limits,
    *,
    start: State = rest,
    goal: State = rest,
    samples: int = SAMPLES,
    bounds: Literal[False] = False,
) -> Motion: ...
@overload
def minimum_duration(
    points: Tensor,
    limits: Limits,
    *,
    start: State = rest,
    goal: State = rest,
    samples: int = SAMPLES,
    bounds: Literal[True],
) -> tuple[Motion, DurationBounds]: ...
def minimum_duration(
    points: Tensor,
    limits: Limits,
    *,
    start: State = rest,
    goal: State = rest,
    samples: int = SAMPLES,
    bounds: bool = False,
) -> Motion | tuple[Motion, DurationBounds]:
    """The motion of least jerk in the shortest time in which it can keep its limits.

    `minimum_time` stretches all times alike, and the motion meets a limit at one instant. Here each
    segment has a duration of its own, and the motion goes along its limits. First the proportions
    are those of segments that go from rest to rest at a limit each, of their lengths, or of the
    cube roots of these, whichever is the fastest. From there others follow, by the slopes of what
    limits need, as long as one shortens the motion. At those that are found the duration is the
    least to a thousandth, which ``bounds`` proves; that no others far away are faster is proven by
    nothing.

    Where ends move, or a range leaves zero out, a longer duration may break what a shorter one
    keeps. Durations are then tried upward, from a thirty-second of that from rest to rest, each 7 %
    longer than the one before, and from the first at which limits can be kept the motion is
    shortened as said: a thousandth less would not do, yet shorter durations that do are overlooked
    where they span less than 7 %.

    Differentiable in points and limits as `minimum_jerk` at the times that were found: they are
    constants. Under torch.compile it runs outside of the graph, which ends before it. The times
    of the points are not returned; they are where the motion meets them.

    Arguments:
        points: ``[..., count, dof]``, in the unit of a joint; neighbours differ in some joint.
        limits: ranges of velocity, acceleration, jerk and position; one of the first three.
        start: velocity, acceleration and jerk at the first point; those left out are free.
        goal: the same at the last point.
        samples: how many samples, evenly spaced in time, the ends included.
        bounds: whether to return `DurationBounds` too.

    Returns:
        a motion ``[..., samples, dof]``; with ``bounds`` a pair.

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
        >>> round(slow.times[-1].item(), 1), fast.times[-1].item() < 5.06
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
    check_choice("value of bounds", bounds, (False, True))
    make_plan(points, None, duration=1.0, start=start, goal=goal, samples=samples, order=3)
    check_limits(limits, points)
    check_duration(limits, points)
    fixed = pytree.tree_map_only(Tensor, Tensor.detach, limits)
    hurry = Hurry(points.detach(), fixed, start, goal, samples)
    monotone = stands_still(start, goal) and _keeps_zero(hurry)
    widths = hurry.improve(_fastest(hurry, monotone=monotone).diff(dim=-1))
    times = torch.nn.functional.pad(widths.cumsum(-1), (1, 0))
    times, less = _shorten(hurry, times, _PRECISION)
    found = minimum_jerk(points, times, start=start, goal=goal, limits=limits, samples=samples)
    found = replace(found, start_time=None)
    if not bounds:
        return found
    return found, DurationBounds(less[..., -1], times[..., -1], times)


# Trial durations that do not keep the limits are no errors, as they would be in a graph.
run_eagerly(
    minimum_duration,
    "minimum_duration searches for durations, which no graph can hold: call it outside of it",
)


def _keeps_zero(hurry: Hurry) -> bool:
    """Whether the ranges of the derivatives have zero well inside."""
    kinds = [kind for kind in hurry.limits.given if kind != "position"]
    pairs = [range_of(hurry.limits, kind, hurry.points) for kind in kinds]
    return all(bool((torch.minimum(-a, b) > _INSIDE * (b - a)).all()) for a, b in pairs)


def _alone(hurry: Hurry) -> Tensor:
    """Seconds ``[..., count - 1]`` of each segment alone, from rest to rest at one limit."""
    move, stretches = hurry.points.to(torch.float64).diff(dim=-2), []
    size = move.abs().amax(-1)
    if not bool((size > 0).all()):
        raise ArgumentError(
            "Neighbouring points are alike, so the segment between them has no least duration.",
            given=f"segment {tuple((size == 0).nonzero()[0].tolist())}",
            mend="Leave one of them out.",
        )
    for kind, profile in _PROFILES.items():
        if kind in hurry.limits.given:
            lower, upper = (end.unsqueeze(-2) for end in range_of(hurry.limits, kind, move))
            ahead, either = torch.where(move > 0, upper, -lower), torch.maximum(upper, -lower)
            level = profile * move.abs() / torch.where(ahead > 0, ahead, either)
            stretches.append(level.amax(-1) ** (1 / POWERS[kind]))
    return torch.stack(torch.broadcast_tensors(*stretches)).amax(0)


def _fastest(hurry: Hurry, *, monotone: bool) -> Tensor:
    """The times of the shortest motion of some proportions.

    They are those of each segment alone, of lengths, of unlimited least jerk in each segment, which
    takes the cube root of its length, and half-way between the first and the last.
    """
    alone, length = _alone(hurry), hurry.points.to(torch.float64).diff(dim=-2).abs().amax(-1)
    widths = alone, length.expand_as(alone), (length ** (1 / 3)).expand_as(alone)
    width = torch.stack([width / width.sum(-1, keepdim=True) for width in widths])
    width = torch.cat([width, (width[:1] * width[2:]).sqrt()])[: 4 if width.shape[-1] > 1 else 1]
    share = moved_apart(width, hurry.samples).cumsum(-1) * alone.sum(-1, keepdim=True)
    share = torch.nn.functional.pad(share, (1, 0))
    tried, _ = _shorten(hurry, share, _ROUGH, climbing=not monotone)
    seconds, which = tried[..., -1].min(0)
    if bool(seconds.isinf().any()):
        raise ArgumentError(
            "The limits were kept at no duration that was tried.",
            given=f"durations up to {_LONGEST:g} times that from rest to rest at each point",
            expected="wider limits, or slower ends",
            mend="Call minimum_jerk with limits and a duration to be told which cannot be met.",
        )
    return tried.gather(0, which[None, ..., None].expand(1, *tried.shape[1:])).squeeze(0)


def _shorten(
    hurry: Hurry, times: Tensor, precision: float, *, climbing: bool = False
) -> tuple[Tensor, Tensor]:
    """The times as near to zero as limits can be kept at, or infinity; and those a little less."""
    plan = hurry.plan(times.diff(dim=-1))
    check_given(plan, hurry.limits)
    check_room(plan, hurry.limits)
    one = torch.ones_like(times[..., -1])
    low, high = _climbed(hurry, plan, one) if climbing else (0 * one, torch.inf * one)
    low, high = _bracketed(hurry, plan, low.log(), high.log(), math.log1p(precision))
    return times * high.exp().unsqueeze(-1), times * low.exp().unsqueeze(-1)


def _bracketed(
    hurry: Hurry, plan: Plan, low: Tensor, high: Tensor, precision: float
) -> tuple[Tensor, Tensor]:
    """Logarithms of factors: a linear program proves the first too short, the second is kept.

    By secants through the logarithms of how wide limits need to be, to a little beside their
    zeros, so that both sides are known soon; within known ends every third time half-way.
    """
    longest, beside = math.log(_LONGEST), _BESIDE * precision
    place = torch.where(high.isinf(), 0.0, (low + high) / 2)
    move, slope, last = torch.zeros_like(place), torch.full_like(place, _SLOPE), place
    for turn in range(_TURNS):
        bounds = hurry.needs(plan, plan.step * place.exp(), precision / 10)
        lower, need = (bound.amax(-1) for bound in bounds)
        fits = need < 0
        high = torch.where(fits, torch.minimum(high, place), high)
        low = torch.where(lower > 0, torch.maximum(low, place), low)
        if not bool(((high - low > precision) & (low < longest) & (high > -longest)).any()):
            break
        slope = torch.where(move != 0, (need - last) / move, slope)
        step = -need / slope.clamp(*_SLOPES)
        # Where longer takes nothing off a need, longer steps do.
        size = torch.where(
            slope > _SLOPES[1], torch.maximum(step.abs(), 2 * move.abs()), step.abs()
        )
        aim = place + size * step.sign() + torch.where(fits, -beside, beside)
        aim = (low + high) / 2 if turn % 3 == 2 else aim
        aim = torch.where((aim > low) & (aim < high), aim, (low + high) / 2)
        aim = torch.where(aim.isfinite(), aim, place + size * step.sign()).clamp(-longest, longest)
        place, move, last = aim, aim - place, need
    return low, high


def _climbed(hurry: Hurry, plan: Plan, one: Tensor) -> tuple[Tensor, Tensor]:
    """Factors between which limits are first kept of those tried, infinity where at none."""
    high, low, factor = one * torch.inf, one / _LONGEST, one * _SHORTEST
    while bool((waits := high.isinf()).any()) and bool((factor < _LONGEST).all()):
        fits = waits & hurry.kept(plan, plan.step * factor)
        high, low = torch.where(fits, factor, high), torch.where(waits & ~fits, factor, low)
        factor = factor * _STRIDE
    return low, high
