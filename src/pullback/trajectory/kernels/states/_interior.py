"""Interior points over the states: the least cost within limits, or the least bound on them.

With rows ``g = level + G x``, signs ``o`` of both sides of each row, and ``A x = 0``,

    least cost     minimise x' P x / 2   with  o g + slack = 1
    least bound    minimise t            with  o g + slack = t        (a linear program)

Any motion gives a bound from above, and any multipliers ``z >= 0``, ``sum z = 1``,
``G' (o z) + A' y = 0`` one from below, since ``t >= sum_o z o (level + G x) = level' (o z)`` for
all ``x`` with ``A x = 0``.

Sources: Nocedal and Wright, Numerical Optimization, chapter 14 and section 16.6.
"""

from typing import Any, NamedTuple

import numpy as np

from pullback.trajectory.kernels.states._program import Program, System, pick, whole
from pullback.trajectory.kernels.states._reference import add_pull

__all__ = ["SIGN", "Point", "begin", "interior", "is_least", "linear", "restart", "those"]

_ITERATIONS, _LINEAR_ITERATIONS = 40, 120
# Of its cost, by what a motion may miss the least one, of a limit, by what it may be exceeded, and
# by what conditions may be missed.
_SAVED, _BEYOND, _OFF = 1e-6, 1e-10, 1e-11
# Of the largest multiplier: what others get where forces are to balance.
_FLOORS = (1e-15, 1e-9, 1e-4)
SIGN = np.array([1.0, -1.0])[:, None, None, None]


class Point(NamedTuple):
    """A motion and its multipliers, on their way."""

    x: np.ndarray  # [4, samples, batch]
    y: np.ndarray  # [few, batch]
    rows: np.ndarray  # G x [kinds, samples, batch]
    slack: np.ndarray  # of both sides [2, kinds, samples, batch]
    push: np.ndarray

    def at(self, some: np.ndarray) -> "Point":
        return Point(*(pick(part, some) for part in self))


def those(mask: np.ndarray) -> np.ndarray:
    return whole(np.flatnonzero(mask))


def linear(
    program: Program, level: np.ndarray, precision: float | None
) -> tuple[tuple[np.ndarray, np.ndarray], Point]:
    live = program.scale != 0
    most = 1.5 * np.abs(level).max((0, 1)) + 1e-3
    rows = np.maximum(live.sum((0, 1)), 1)
    slack = np.where(live, most - SIGN * level, 1.0)
    push = np.where(live, 0.5 / rows, 0.0 * slack)
    return _least_bound(program, level, Point(*_still(program), slack, push), most, precision)


def _still(program: Program) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    _, samples, batch = program.scale.shape
    y = np.zeros((len(program.alpha), batch))
    return np.zeros((4, samples, batch)), y, np.zeros(program.scale.shape)


def begin(program: Program, level: np.ndarray) -> Point:
    """The motion without limits, with slacks as if it kept them."""
    live = program.scale != 0
    slack = np.where(live, (1 - SIGN * level).clip(0.1), 1.0)
    return Point(*_still(program), slack, live * np.ones(slack.shape))


def restart(program: Program, level: np.ndarray, x: np.ndarray) -> Point:
    """A motion that keeps its limits, with multipliers of the size that its cost asks for."""
    live = program.scale != 0
    (x,), (g,) = program.integrate(x[None])
    slack = np.where(live, 1 - SIGN * (level + g), 1.0)
    cost = (program.pull_cost(x[None])[0] * x).sum((0, 1))
    rows = np.maximum(2 * live.sum((0, 1)), 1)
    push = np.where(live, 0.1 * (cost + 1) / rows / slack, 0.0)
    return Point(x, _still(program)[1], g, slack, push)


def _missed(program: Program, level: np.ndarray, point: Point, most: np.ndarray) -> np.ndarray:
    """What slacks miss of their definition."""
    return (SIGN * (level + point.rows) + point.slack - most) * (program.scale != 0)


def _forces(program: Program, point: Point) -> np.ndarray:
    """What does not balance of the multipliers and the conditions."""
    force = program.pushed(point.push[:1] - point.push[1:])
    add_pull(program.alpha, program.place, force, point.y[None])
    return force[0]


def _balance(program: Program, q: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What jerks and the first state feel of forces on all states: the most, and their work."""
    h = program.h

    def later(force: np.ndarray) -> np.ndarray:
        """Of each sample and all that come after it."""
        return force[::-1].cumsum(0)[::-1]

    def after(force: np.ndarray) -> np.ndarray:
        return np.concatenate([force[1:], np.zeros_like(force[:1])])

    p = later(q[0])
    v = later(q[1] + h * after(p))
    a = later(q[2] + h * after(v) + h**2 / 2 * after(p))
    felt = np.abs(q[3] + h**3 / 6 * after(p) + h**2 / 2 * after(v) + h * after(a))[:-1]
    first = np.abs(np.stack([p[0], v[0], a[0]]))
    work = (felt * np.abs(x[3, :-1])).sum(0) + (first * np.abs(x[:3, 0])).sum(0)
    return np.maximum(felt.max(0), first.max(0)), work


def _step(
    program: Program, point: Point, missed: np.ndarray, least: np.ndarray,
    surplus: np.ndarray | None,
) -> tuple[Point, np.ndarray]:  # fmt: skip
    """A predictor and a corrector: the next point, and what the step adds to a bound.

    With ``t`` the part by which the predictor changes a slack ``s``, a multiplier ``z`` changes by
    ``-(1 + t)`` of itself, so that ``s z`` loses ``t (1 + t)`` of itself to the second order, which
    the corrector gives back. A bound (with ``surplus``, what the multipliers add up to beyond one)
    touches every row: it is one more right side, and a border of the matrix.
    """
    # Long: one step, of formulas that share their parts.
    slack, push, live = point.slack, point.push, program.scale != 0
    inverse = live / slack
    ratio, rows = push * inverse, 2 * np.maximum(live.sum((0, 1)), 1)
    linear = surplus is not None
    system = System(program._replace(cost=0 * program.cost) if linear else program, ratio.sum(0))
    zero, none = np.zeros((1, *point.x.shape)), np.zeros((1, *point.y.shape))
    border, bend, sideways = ratio[0] - ratio[1], 0.0, None
    if linear:
        sideways = system.solve(zero.copy(), border[None], none, none)
        bend = ratio.sum((0, 1, 2)) - (border * sideways[2][0]).sum((0, 1))

    def aside(parts: list[np.ndarray], total: Any) -> tuple[list[np.ndarray], Any]:
        if sideways is None:
            return parts, 0.0
        change = (total + (border * parts[2][0]).sum((0, 1))) / bend
        return [part + change * more for part, more in zip(parts, sideways, strict=True)], change

    held = ratio * missed
    q = zero.copy() if linear else -program.pull_cost(point.x[None])
    total = held.sum((0, 1, 2)) + (surplus - push.sum((0, 1, 2)) if linear else 0.0)
    gap = -program.met(point.x[None])
    first = system.solve(q, (held[1] - held[0])[None], point.y[None], gap)
    (_, _, (g,)), change = aside(list(first), total)
    t = (change - missed - SIGN * g) * inverse
    a, b = (0.995 / most.clip(0.995) for most in (-t.min((0, 1, 2)), 1 + t.max((0, 1, 2))))
    product = slack * push
    part = product * t
    mean = product.sum((0, 1, 2)) / rows
    after = (1 - b) * mean + (a * (1 - b) - b) * part.sum((0, 1, 2)) / rows
    after -= a * b * (part * t).sum((0, 1, 2)) / rows
    more = np.maximum((after / mean) ** 3 * mean, least) * inverse + push * (t + t * t)
    second = system.solve(zero, (more[1] - more[0])[None], none, none)
    both = [one + other for one, other in zip(first, second, strict=True)]
    ((x,), (y,), (g,)), change = aside(both, total + more.sum((0, 1, 2)))
    of_slack = (change - missed - SIGN * g) * live
    of_push = more - push - ratio * of_slack
    if linear:
        # Of stiff rows rounding leaves forces that do not balance; to these there is one more step.
        tried = point._replace(y=point.y + y, push=push + of_push)
        third = system.solve(-_forces(program, tried)[None], 0 * border[None], none, none)
        ((dx,), (dy,), (dg,)), further = aside(list(third), tried.push.sum((0, 1, 2)) - 1)
        x, y, change = x + dx, y + dy, change + further
        moved = (further - SIGN * dg) * live
        of_slack, of_push = of_slack + moved, of_push - ratio * moved
    a = 0.995 / (-(of_slack * inverse).min((0, 1, 2))).clip(0.995)
    b = 0.995 / (-(of_push / (push + ~live)).min((0, 1, 2))).clip(0.995)
    if not linear:
        a = b = np.minimum(a, b)
    (x,), (g,) = program.integrate((point.x + a * x)[None])
    following = Point(x, point.y + b * y, g, slack + a * of_slack, push + b * of_push)
    return following, a * change


def interior(
    program: Program, level: np.ndarray, point: Point, aim: float
) -> tuple[Point, np.ndarray]:
    """The least cost with a gap, a part of the largest multiplier, and for which joints."""
    result, found = Point(*(part.copy() for part in point)), np.zeros(level.shape[-1], bool)
    left, ones = np.arange(len(found)), np.ones(len(found))
    missed, unbalanced = _missed(program, level, point, ones), ones
    for _ in range(_ITERATIONS):
        rows = 2 * np.maximum((program.scale != 0).sum((0, 1)), 1)
        mean = (point.slack * point.push).sum((0, 1, 2)) / rows
        force = point.push.max((0, 1, 2))
        gap, worst = aim * force.clip(1), np.abs(missed).max((0, 1, 2))
        done = (mean <= 1.5 * gap) & (worst < 1e-9)
        if done.any():
            pull = _forces(program, point) + program.pull_cost(point.x[None])[0]
            unbalanced, _ = _balance(program, pull, point.x)
            done &= unbalanced < 1e-4 * force
        going = ~done & np.isfinite(mean) & np.isfinite(unbalanced)
        if not going.all():
            for part, value in zip(result, point, strict=True):
                part[..., left[~going]] = value[..., ~going]
            found[left] = done
            some = those(going)
            left, program, level = left[some], program.at(some), pick(level, some)
            point, missed, gap = point.at(some), pick(missed, some), gap[some]
            unbalanced = unbalanced[some]
        if not left.size:
            break
        point, _ = _step(program, point, missed, gap, None)
        missed = _missed(program, level, point, ones[: len(left)])
    return result, found


def is_least(program: Program, level: np.ndarray, point: Point) -> np.ndarray:
    """Whether motions keep their limits and cost a millionth too much at most: ``[batch]``.

    With multipliers ``z >= 0``, any ``y`` and what they leave of a balance,
    ``r = P x + G' (o z) + A' y``, another motion ``x + d`` within limits costs more by

        x' P d + d' P d / 2 >= r' d - z' (1 - o g) + d' P d / 2 >= -r' K r / 2 - z' (1 - o g)

    since ``A d = 0`` and ``o G d <= 1 - o g``, with the inverse ``K`` of ``P`` over changes that
    keep the conditions. So that is all that could be saved, whatever found the motion.

    Source: Boyd and Vandenberghe, Convex Optimization, sections 5.1.3 and 5.5.1.
    """
    (x,), (rows,) = program.integrate(point.x[None])
    room = (1 - SIGN * (level + rows)) * (program.scale != 0)
    pull, none = program.pull_cost(x[None]), np.zeros((1, *point.y.shape))
    rest = pull + _forces(program, point)
    change = System(program, 0 * level).solve(rest, 0 * level[None], none, none)[0]
    cost, more = ((program.pull_cost(part) * part).sum((0, 1, 2)) / 2 for part in (x[None], change))
    saved = (point.push * room).sum((0, 1, 2)) + more
    off = np.abs(program.met(x[None])).max((0, 1), initial=0.0)
    return (saved <= _SAVED * (cost + 1)) & (-room.min((0, 1, 2)) <= _BEYOND) & (off <= _OFF)


def _least_bound(
    program: Program, level: np.ndarray, point: Point, most: np.ndarray, precision: float | None
) -> tuple[tuple[np.ndarray, np.ndarray], Point]:
    """The least bound from below and above, and the motions that keep the upper ones."""
    lows, highs = np.zeros(level.shape[-1]), np.full(level.shape[-1], np.inf)
    result, left = Point(*(part.copy() for part in point)), np.arange(len(lows))
    begun = np.zeros(0)
    for number in range(_LINEAR_ITERATIONS):
        pull, live = _forces(program, point), program.scale != 0
        rows = 2 * np.maximum(live.sum((0, 1)), 1)
        mean = (point.slack * point.push).sum((0, 1, 2)) / rows
        begun = mean if not number else begun
        total = point.push.sum((0, 1, 2))
        off = np.abs(program.met(point.x[None])[0]).max(0, initial=0.0)
        peak = (np.abs(level + point.rows) * live).max((0, 1))
        highs[left] = np.where(off < 1e-11, np.minimum(highs[left], peak), highs[left])
        lows[left] = np.maximum(lows[left], _lower(program, level, point, pull))
        for part, value in zip(result, point, strict=True):
            part[..., left] = value
        hard = those((highs[left] >= 1) & (mean < 1e-5 * begun))
        if hard.size:
            better = _balanced(program.at(hard), pick(level, hard), point.at(hard))
            lows[left[hard]] = np.fmax(lows[left[hard]], better)
        low, high = lows[left], highs[left]
        kept, broken = high < 1, low > 1
        if precision is not None:
            kept &= 1 - high > 0.5 * (1 - low)
            broken &= high - low < precision * low
        sound = (mean >= 1e-13 * begun) & np.isfinite(pull).all((0, 1))
        going = those(~kept & ~broken & sound)
        if not going.size:
            break
        left, program, level = left[going], program.at(going), pick(level, going)
        point, most, begun = point.at(going), most[going], begun[going]
        missed = _missed(program, level, point, most)
        point, change = _step(program, point, missed, 0.0 * begun, total[going] - 1)
        most = most + change
    return (lows, highs), result


def _lower(program: Program, level: np.ndarray, point: Point, force: np.ndarray) -> np.ndarray:
    """The bound from below. Forces that are left over could move it by their work."""
    work = _balance(program, force, point.x)[1]
    reached = (level * (point.push[0] - point.push[1])).sum((0, 1))
    return (reached - 2 * work) / point.push.sum((0, 1, 2))


def _balanced(program: Program, level: np.ndarray, point: Point) -> np.ndarray:
    """The bound from below, after small changes of the multipliers by which forces balance.

    Newton's steps leave of a multiplier what rounding makes of a stiff row. Changes ``w G x`` that
    take away the forces that are left solve a problem with the weights ``w``, about the multipliers
    themselves, which is not stiff. One side of a row gives way before the other pushes: none is
    negative. What holds a motion is not always among the rows that push: others get a little.
    """
    live, most = program.scale != 0, point.push.max((0, 1, 2))
    zero, q = 0 * point.y[None], -_forces(program, point)[None]
    best = np.full(level.shape[-1], -np.inf)
    for floor in _FLOORS:
        stiff = point.push.sum(0) + floor * most * live
        system = System(program._replace(cost=0 * program.cost), stiff)
        _, (dy,), (moved,) = system.solve(q.copy(), 0 * stiff[None], zero, zero)
        force = stiff * moved
        change = np.stack([force, -force])
        taken = np.minimum((-change).clip(0), point.push)
        push = point.push - taken + (np.abs(force) - taken[::-1]) * (change > 0)
        tried = point._replace(y=point.y + dy, push=push)
        best = np.fmax(best, _lower(program, level, tried, _forces(program, tried)))
    return best
