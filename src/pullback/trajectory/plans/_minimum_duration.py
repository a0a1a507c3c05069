"""`minimum_duration`: a motion that hurries, each segment with a duration of its own."""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor

from pullback.errors import ArgumentError, UnsupportedError
from pullback.internal.torch import are_functorch_transforms_active, pytree, run_eagerly
from pullback.trajectory._checks import check_choice
from pullback.trajectory._limits import Limits, check_limits, range_of
from pullback.trajectory._motion import Motion
from pullback.trajectory._state import State, rest
from pullback.trajectory.plans._minimum_jerk import minimum_jerk
from pullback.trajectory.plans._minimum_time import check_duration, stands_still
from pullback.trajectory.plans._plan import POWERS, SAMPLES, Plan, make_plan
from pullback.trajectory.plans._rows import (
    LONGEST,
    check_given,
    check_room,
    miss_limits,
    needs_of,
    shorten,
)

__all__ = ["DurationBounds", "Hurry", "minimum_duration", "moved_apart"]

# Neighbouring points keep this many samples apart.
_APART = 1.5
# How often other proportions are tried, and what is worth a further trial, of the duration.
_ROUNDS, _GAIN = 32, 1e-4
# How far logarithms of widths are changed at once, and by how much slopes are measured.
_STRIDE, _PROBE = 0.2, 0.002
# The largest size of a step: with larger ones the forces of the dual program need more steps.
_LARGEST = 0.8
# To which precision limits are measured for them.
_PRECISION = 1e-5
# A need that asks for nothing.
_FAR = 10.0
# Slopes that are none.
_FLAT = 1e-9
# Of how many times as wide limits need to be, the logarithm: nearer, a stretch is known well.
_NEAR = 0.02
# Powers of the duration by which a motion may exceed limits, and steps of the dual program.
_POWERS, _STEPS = (1.0, 3.0), 200


def moved_apart(share: Tensor, samples: int) -> Tensor:
    """Parts of one, of which only those are changed much that are too close for the samples."""
    least = _APART / (samples - 1)
    width = (share - least).clamp(min=0)
    return least + (1 - least * width.shape[-1]) * width / width.sum(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class Hurry:
    """What a motion is asked for, whatever time its segments take: ``widths [..., count - 1]``."""

    points: Tensor
    limits: Limits
    start: State
    goal: State
    samples: int

    def plan(self, widths: Tensor) -> Plan:
        """The plan of a motion whose segments take so long."""
        times = torch.nn.functional.pad(widths.cumsum(-1), (1, 0))
        return make_plan(
            self.points, times,
            duration=None, start=self.start, goal=self.goal, samples=self.samples, order=3,
        )  # fmt: skip

    def kept(self, plan: Plan, step: Tensor) -> Tensor:
        """Whether limits are kept with so many seconds between samples, as far as is found."""
        if not bool(self._is_fast_enough(plan, step).any()):
            return torch.zeros_like(step, dtype=torch.bool)
        return (miss_limits(plan, self.limits, step)[1] < 1).all(-1).to(step.device)

    def improve(self, widths: Tensor) -> Tensor:
        """Widths near these whose sum is shorter, as long as slopes show some.

        Each trial gives the logarithm of how many times as wide limits need to be for each joint,
        and its slopes by the logarithms of widths. The next one is a step ``d`` from the best,

            minimise share . d + |d|^2 / (2 size)  with  need + slope . d <= 0

        of all trials within a stride, as the bundle of a nonsmooth function: where several joints
        press, none of their slopes alone leads on. The size grows where a trial is better.

        Source: Bonnans, Gilbert, Lemarechal and Sagastizabal, Numerical Optimization, chapter 10.
        """
        tried, size = widths, torch.full_like(widths[..., :1], _STRIDE)
        best, least, trials = widths, torch.full_like(size, torch.inf), []
        for _ in range(_ROUNDS if widths.shape[-1] > 1 else 0):
            need, slopes = self._slopes(tried)
            # By which all segments are to be stretched alike until limits are kept.
            powers = -slopes.sum(-1)
            stretch = (need / powers.clamp(*_POWERS)).amax(-1, keepdim=True)
            total = tried.sum(-1, keepdim=True).log() + stretch
            better = (total < least) & (stretch < _NEAR)
            best = torch.where(better, tried * stretch.exp(), best)
            least, size = (
                torch.where(better, total, least),
                torch.where(better, 2 * size, size / 2).clamp(max=_LARGEST),
            )
            trials.append((need, slopes, tried.log()))
            share = best / best.sum(-1, keepdim=True)
            step = _shortening(share, *_bundle(trials, best.log()), size)
            if bool(((share * step).sum(-1) > -_GAIN).all()):
                break
            tried = best * step.exp()
            total = tried.sum(-1, keepdim=True)
            tried = moved_apart(tried / total, self.samples) * total
        return best

    def _slopes(self, widths: Tensor) -> tuple[Tensor, Tensor]:
        """The need of `improve` ``[..., dof]``, and its slopes ``[..., dof, count - 1]``."""
        change = torch.eye(widths.shape[-1], dtype=widths.dtype, device=widths.device) * _PROBE
        change = torch.nn.functional.pad(change, (0, 0, 1, 0))
        change = change.reshape(-1, *(1,) * (widths.dim() - 1), widths.shape[-1])
        plan = self.plan(widths * change.exp())
        _, found = needs_of(plan, self.limits, plan.step, _PRECISION)
        return found[0], ((found[1:] - found[0]) / _PROBE).movedim(0, -1)

    def _is_fast_enough(self, plan: Plan, step: Tensor) -> Tensor:
        """Whether mean speeds are within the limit, without which nothing is: quick to see."""
        # Without it the search upward takes 1.6 to 2.0 times as long.
        if "velocity" not in self.limits.given:
            return torch.ones_like(step, dtype=torch.bool)
        lower, upper = (end.unsqueeze(-2) for end in range_of(self.limits, "velocity", plan.points))
        seconds = (plan.places.diff(dim=-1) * step.unsqueeze(-1)).unsqueeze(-1)
        mean = plan.points.diff(dim=-2) / seconds
        return ((mean <= upper) & (mean >= lower)).all(-1).all(-1)


def _bundle(trials: list[tuple[Tensor, ...]], place: Tensor) -> tuple[Tensor, Tensor]:
    """Needs at a place by the slopes of each trial, and these; of far trials none that matter."""
    needs = []
    for need, slopes, at in trials:
        away = place - at
        near = away.abs().amax(-1, keepdim=True) <= _STRIDE
        needs.append(torch.where(near, need + (slopes @ away.unsqueeze(-1)).squeeze(-1), -_FAR))
    slopes = torch.cat([slopes for _, slopes, _ in trials], dim=-2)
    return torch.cat(needs, dim=-1).clamp(-_FAR, 0), slopes


def _shortening(share: Tensor, need: Tensor, slopes: Tensor, size: Tensor) -> Tensor:
    """The step of `Hurry.improve`, from forces ``f >= 0`` on its conditions.

    The dual program is to minimise ``f' S f / 2 - f' (need - size slopes share)`` with ``S = size
    slopes slopes'``, and the step ``-size (share + slopes' f)``.

    Source: Beck and Teboulle, A fast iterative shrinkage-thresholding algorithm, 2009.
    """
    powers = -slopes.sum(-1).clamp(-_POWERS[1], -_POWERS[0])
    norm = slopes.norm(dim=-1).clamp(min=_FLAT)  # a joint that stands still has none
    slopes, need = slopes / norm.unsqueeze(-1), (need / norm)
    gram = size.unsqueeze(-1) * slopes @ slopes.mT
    pull = need - size * (slopes @ share.unsqueeze(-1)).squeeze(-1)
    rate = 1 / torch.linalg.matrix_norm(gram, 2).unsqueeze(-1)
    force = ahead = torch.zeros_like(need)
    for number in range(_STEPS):
        last = force
        force = (ahead + rate * (pull - (gram @ ahead.unsqueeze(-1)).squeeze(-1))).clamp(min=0)
        ahead = force + number / (number + 3) * (force - last)
    step = -size * (share + (slopes.mT @ force.unsqueeze(-1)).squeeze(-1))
    # What the forces leave is a stretch; some needs, such as those of a position, grow with it.
    left = norm * (need + (slopes @ step.unsqueeze(-1)).squeeze(-1))
    step = step + (left / powers).amax(-1, keepdim=True).clamp(min=0)
    return step * (_STRIDE / step.abs().amax(-1, keepdim=True)).clamp(max=1)


_EXACT = 1e-3
# Of a length over a limit: a segment from rest to rest, at the limit all the time, takes a root.
_PROFILES = {"velocity": 1.0, "acceleration": 4.0, "jerk": 32.0}
# Where longer is not always easier, durations are tried from here on, at such distances.
_SHORTEST = 1 / 32
_LONGER = 1.07
# How near proportions are compared.
_ROUGH = 1e-2
# Of the width of a range: nearer to zero an end is smaller than what rounding makes of a zero.
_INSIDE = 1e-6


class DurationBounds(NamedTuple):
    """What is known of the least duration, and the times of the points at which it was found.

    Arguments:
        low: ``[...]`` seconds: at the proportions of ``times`` no motion is as short, which a
            linear program proves. It is a thousandth below ``high``; farther where the program
            proves no more, and 0 where it proves nothing.
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
    least to a thousandth, which ``bounds`` proves, or how much of it; that no others far away are
    faster is proven by nothing.

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
        >>> round(slow.times[-1].item(), 1), fast.times[-1].item() < 5.1
        (15.3, True)
        >>> flying = State(velocity=1.0)
        >>> fast = minimum_duration(points, Limits(velocity=1.0), start=flying, goal=flying)
        >>> round(fast.times[-1].item(), 1), round(fast.velocity[0].item(), 6)
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
    times, less = _shorten(hurry, times, _EXACT)
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
            given=f"durations up to {LONGEST:g} times that from rest to rest at each point",
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
    low, high = shorten(plan, hurry.limits, low.log(), high.log(), math.log1p(precision))
    return times * high.exp().unsqueeze(-1), times * low.exp().unsqueeze(-1)


def _climbed(hurry: Hurry, plan: Plan, one: Tensor) -> tuple[Tensor, Tensor]:
    """Factors between which limits are first kept of those tried, infinity where at none."""
    high, low, factor = one * torch.inf, one / LONGEST, one * _SHORTEST
    while bool((waits := high.isinf()).any()) and bool((factor < LONGEST).all()):
        fits = waits & hurry.kept(plan, plan.step * factor)
        high, low = torch.where(fits, factor, high), torch.where(waits & ~fits, factor, low)
        factor = factor * _LONGER
    return low, high
