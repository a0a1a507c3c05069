"""Which limits are active: interior points over the states, and whether limits can be kept at all.

With rows ``g = level + G x``, signs ``o`` of both sides of each row, and ``A x = 0``,

    least cost     minimise x' P x / 2   with  o g + slack = 1
    least bound    minimise t            with  o g + slack = t        (a linear program)

The multipliers of the first one say which rows are active, and from there rows are dropped that do
not push, and added that are exceeded, until the motion that meets the active ones exactly is the
least. The second one decides whether limits can be kept: any motion gives a bound from above, and
any multipliers ``z >= 0``, ``sum z = 1``, ``G' (o z) + A' y = 0`` one from below, since
``t >= sum_o z o (level + G x) = level' (o z)`` for all ``x`` with ``A x = 0``.

Sources: Nocedal and Wright, Numerical Optimization, chapter 14, sections 16.5 and 16.6.
"""

from typing import NamedTuple

import numpy as np

from pullback.trajectory.kernels.states._program import Program, System, meet, stiffness

__all__ = ["Found", "bound", "search"]

_ITERATIONS, _LINEAR_ITERATIONS = 40, 120
_ROUNDS, _TOGETHER = 60, 8
# The product of a slack and its multiplier at which active rows are told, as a part of the cost, or
# of the largest multiplier where motions are driven hard.
_GAP = 1e-9
# What a row may exceed its limit by, as a part of it, and how near to it a row is met: with a
# multiplier below a part of the largest one, or of the cost, that is a kink.
_EXCESS = 5e-13
_NEAR = 1e-10
_WEAK = 1e-9
_SIGN = np.array([1.0, -1.0])[:, None, None]


class Found(NamedTuple):
    """What is known of each joint.

    Arguments:
        active: ``[batch, kinds, samples]``, 1 where the upper end of a range is met and pushes, -1
            where the lower one does.
        kink: ``[batch]``, whether a row is met that does not push, so that the least change of what
            is given makes it active or not.
        found: ``[batch]``, whether there is a least motion within the limits, as far as is known.
        x: ``[batch, 4, samples]``, the motion itself where it is not met by its active rows to
            rounding, as they depend on one another; elsewhere NaN.
    """

    active: np.ndarray
    kink: np.ndarray
    found: np.ndarray
    x: np.ndarray


class _Point(NamedTuple):
    """``x [batch, 4, samples]``, ``y``, and both sides ``[batch, 2, kinds, samples]``."""

    x: np.ndarray
    y: np.ndarray
    slack: np.ndarray
    push: np.ndarray

    def at(self, some: np.ndarray) -> "_Point":
        return _Point(*(part[some] for part in self))


def _wide(scalars: np.ndarray) -> np.ndarray:
    return scalars[:, None, None, None]


@np.errstate(all="ignore")  # what is no number any more is left out
def search(program: Program, level: np.ndarray) -> Found:
    """Find the active rows of each joint."""
    batch, samples = len(level), level.shape[-1]
    x = np.full((batch, 4, samples), np.nan)
    active, kink = np.zeros(level.shape, np.int8), np.zeros(batch, bool)
    found = np.asarray((np.abs(level) <= 1).all((1, 2)))
    fixed = ((program.scale == 0) & (np.abs(level) > 1)).any((1, 2))
    left = np.flatnonzero(~found & ~fixed & np.isfinite(level).all((1, 2)))
    kink[found] = _near(program.at(found), level[found], active[found], 0 * level[found])
    for start in (False, True):
        if not left.size:
            break
        some, own = program.at(left), level[left]
        point = _begin(some, own)
        if start:
            bounds, point = _bound(some, own, 1e-6)
            kept = bounds[1] < 1
            left, some, own = left[kept], some.at(kept), own[kept]
            if not left.size:
                break
            point = _restart(some, own, point.x[kept])
        point, there = _interior(some, own, point)
        most = point.push.max((1, 2, 3)).clip(1)
        guess = np.where(point.push > _wide(most) * point.slack, _SIGN, 0)
        guess = guess[there].sum(1).astype(np.int8)
        sign, weak, settled = _settle(some.at(there), own[there], guess)
        done = left[there]
        active[done], kink[done], found[done] = sign, weak, True
        x[done[~settled]] = point.x[there][~settled]
        left = left[~there]
    return Found(active, kink, found, x)


@np.errstate(all="ignore")
def bound(
    program: Program, level: np.ndarray, precision: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """How many times as wide limits need to be, at least and at most, ``[batch]``.

    To a relative precision, or until it is known whether that is more or less than one.
    """
    high = np.abs(level).max((1, 2))
    low, hard = np.zeros(len(level)), high > 1  # others keep their limits as they are
    if hard.any():
        low[hard], high[hard] = _bound(program.at(hard), level[hard], precision)[0]
    peak = np.where(program.scale == 0, np.abs(level), 0.0).max((1, 2))
    return np.where(peak > 1, np.maximum(low, peak), low), np.where(
        peak > 1, np.maximum(high, peak), high
    )


def _bound(
    program: Program, level: np.ndarray, precision: float | None
) -> tuple[tuple[np.ndarray, np.ndarray], _Point]:
    live = program.scale != 0
    most = 1.5 * np.abs(level).max((1, 2)) + 1e-3
    rows = np.maximum(live.sum((1, 2)), 1)
    slack = np.where(live[:, None], _wide(most) - _SIGN * level[:, None], 1.0)
    push = np.where(live[:, None], _wide(0.5 / rows), 0.0 * slack)
    return _linear(program, level, _Point(*_still(program), slack, push), most, precision)


def _still(program: Program) -> tuple[np.ndarray, np.ndarray]:
    batch, _, samples = program.scale.shape
    return np.zeros((batch, 4, samples)), np.zeros((batch, program.conditions.shape[1]))


def _begin(program: Program, level: np.ndarray) -> _Point:
    """The motion without limits, with slacks as if it kept them."""
    live = (program.scale != 0)[:, None]
    slack = np.where(live, (1 - _SIGN * level[:, None]).clip(0.1), 1.0)
    return _Point(*_still(program), slack, live * np.ones(slack.shape))


def _restart(program: Program, level: np.ndarray, x: np.ndarray) -> _Point:
    """A motion that keeps its limits, with multipliers of the size that its cost asks for."""
    live = (program.scale != 0)[:, None]
    slack = np.where(live, 1 - _SIGN * (level + program.rows(x))[:, None], 1.0)
    cost = (program.pull_cost(x) * x).sum((1, 2))
    rows = np.maximum(live.sum((1, 2, 3)), 1)
    push = np.where(live, _wide(0.1 * (cost + 1) / rows) / slack, 0.0)
    return _Point(x, _still(program)[1], slack, push)


class _Residuals(NamedTuple):
    force: np.ndarray
    missed: np.ndarray
    peak: np.ndarray


def _residuals(
    program: Program, level: np.ndarray, point: _Point, most: np.ndarray, *, linear: bool
) -> _Residuals:
    """What does not balance, what slacks miss of their definition, and the largest row."""
    live = (program.scale != 0)[:, None]
    force = program.pull_rows(point.push[:, 0] - point.push[:, 1])
    force += program.pull_conditions(point.y)
    if not linear:
        force += program.pull_cost(point.x)
    reached = (level + program.rows(point.x))[:, None]
    missed = np.where(live, _SIGN * reached + point.slack - _wide(most), 0.0)
    return _Residuals(force, missed, np.where(live, np.abs(reached), 0.0).max((1, 2, 3)))


def _balance(program: Program, q: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What jerks and the first state feel of forces on all states: the most, and their work."""
    h = program.h

    def later(force: np.ndarray) -> np.ndarray:
        """Of each sample and all that come after it."""
        return force[:, ::-1].cumsum(-1)[:, ::-1]

    p = later(q[:, 0])
    after = np.pad(p[:, 1:], ((0, 0), (0, 1)))
    v = later(q[:, 1] + h * after)
    next_v = np.pad(v[:, 1:], ((0, 0), (0, 1)))
    a = later(q[:, 2] + h * next_v + h**2 / 2 * after)
    next_a = np.pad(a[:, 1:], ((0, 0), (0, 1)))
    felt = np.abs(q[:, 3] + h**3 / 6 * after + h**2 / 2 * next_v + h * next_a)[:, :-1]
    first = np.abs(np.stack([p[:, 0], v[:, 0], a[:, 0]], -1))
    work = (felt * np.abs(x[:, 3, :-1])).sum(-1) + (first * np.abs(x[:, :3, 0])).sum(-1)
    return np.maximum(felt.max(-1), first.max(-1)), work


def _longest(values: np.ndarray, changes: np.ndarray) -> np.ndarray:
    """How much of a change leaves values positive, ``[batch]``."""
    steepest = np.where(values > 0, -changes / np.where(values > 0, values, 1.0), 0.0)
    return 0.995 / steepest.max((1, 2, 3)).clip(0.995)


def _newton(
    system: System, point: _Point, residuals: _Residuals, wanted: np.ndarray,
    surplus: np.ndarray | None,
) -> tuple[_Point, np.ndarray]:  # fmt: skip
    """A step by which slack times multiplier changes by ``wanted``; the change of the bound.

    The bound touches every row: it is one more right side, and a border of the matrix.
    """
    program = system.program
    live = (program.scale != 0)[:, None]
    ratio = point.push / point.slack
    force = np.where(live, (wanted + point.push * residuals.missed) / point.slack, 0.0)
    right = program.pull_rows(force[:, 1] - force[:, 0]) - residuals.force
    x, y = system.solve(right, -program.conditions_of(point.x))
    g, change = program.rows(x), np.zeros(len(x))
    if surplus is not None:
        border = ratio[:, 0] - ratio[:, 1]
        more, dual = system.solve(program.pull_rows(border), np.zeros(y.shape))
        moved = program.rows(more)
        held = ratio.sum((1, 2, 3)) - (border * moved).sum((1, 2))
        change = (surplus + force.sum((1, 2, 3)) + (border * g).sum((1, 2))) / held
        x, y = x + change[:, None, None] * more, y + change[:, None] * dual
        g = g + change[:, None, None] * moved
    slack = np.where(live, _wide(change) - residuals.missed - _SIGN * g[:, None], 0.0)
    push = np.where(live, (wanted - point.push * slack) / point.slack, 0.0)
    return _Point(x, y, slack, push), change


def _step(
    program: Program, point: _Point, residuals: _Residuals, least: np.ndarray,
    surplus: np.ndarray | None,
) -> tuple[_Point, np.ndarray]:  # fmt: skip
    """A predictor and a corrector; the next point, and the change of the bound."""
    rows = 2 * np.maximum((program.scale != 0).sum((1, 2)), 1)
    used = program if surplus is None else program._replace(cost=0 * program.cost)
    system = System(used, (point.push / point.slack).sum(1))
    product = point.slack * point.push
    mean = product.sum((1, 2, 3)) / rows
    guess, _ = _newton(system, point, residuals, -product, surplus)
    a, b = _longest(point.slack, guess.slack), _longest(point.push, guess.push)
    tried = (point.slack + _wide(a) * guess.slack) * (point.push + _wide(b) * guess.push)
    after = tried.sum((1, 2, 3)) / rows
    target = np.maximum((after / mean) ** 3 * mean, least)
    wanted = _wide(target) - product - guess.slack * guess.push
    step, change = _newton(system, point, residuals, wanted, surplus)
    a, b = _longest(point.slack, step.slack), _longest(point.push, step.push)
    if surplus is None:
        a = b = np.minimum(a, b)
    following = _Point(
        point.x + a[:, None, None] * step.x,
        point.y + b[:, None] * step.y,
        point.slack + _wide(a) * step.slack,
        point.push + _wide(b) * step.push,
    )
    return following, a * change


def _interior(program: Program, level: np.ndarray, point: _Point) -> tuple[_Point, np.ndarray]:
    """The least cost with a gap, and for which joints it was found."""
    result, found = _Point(*(part.copy() for part in point)), np.zeros(len(level), bool)
    left = np.arange(len(level))
    for _ in range(_ITERATIONS):
        now = _residuals(program, level, point, np.ones(len(left)), linear=False)
        rows = 2 * np.maximum((program.scale != 0).sum((1, 2)), 1)
        mean = (point.slack * point.push).sum((1, 2, 3)) / rows
        force = point.push.max((1, 2, 3))
        unbalanced, _ = _balance(program, now.force, point.x)
        worst = np.abs(now.missed).max((1, 2, 3))
        gap = _GAP * force.clip(1)
        done = (mean <= 1.5 * gap) & (worst < 1e-9) & (unbalanced < 1e-4 * force)
        for part, value in zip(result, point, strict=True):
            part[left] = value
        found[left] = done
        going = ~done & np.isfinite(mean) & np.isfinite(unbalanced)
        if not going.any():
            break
        left, program, level = left[going], program.at(going), level[going]
        now = _Residuals(*(part[going] for part in now))
        point, _ = _step(program, point.at(going), now, gap[going], None)
    return result, found


def _linear(
    program: Program, level: np.ndarray, point: _Point, most: np.ndarray, precision: float | None
) -> tuple[tuple[np.ndarray, np.ndarray], _Point]:
    """The least bound from below and above, and the motions that keep the upper ones."""
    lows, highs = np.zeros(len(level)), np.full(len(level), np.inf)
    result, left = _Point(*(part.copy() for part in point)), np.arange(len(level))
    begun = np.zeros(0)
    for number in range(_LINEAR_ITERATIONS):
        now = _residuals(program, level, point, most, linear=True)
        rows = 2 * np.maximum((program.scale != 0).sum((1, 2)), 1)
        mean = (point.slack * point.push).sum((1, 2, 3)) / rows
        begun = mean if not number else begun
        total = point.push.sum((1, 2, 3))
        off = np.abs(program.conditions_of(point.x)).max(-1, initial=0.0)
        highs[left] = np.where(off < 1e-11, np.minimum(highs[left], now.peak), highs[left])
        lows[left] = np.maximum(lows[left], _lower(program, level, point, now.force))
        for part, value in zip(result, point, strict=True):
            part[left] = value
        low, high = lows[left], highs[left]
        hard = (high >= 1) & (mean < 1e-5 * begun)
        if hard.any():
            some = program.at(hard)
            for floor in (1e-15, 1e-9, 1e-4):
                better = _balanced(some, level[hard], point.at(hard), floor)
                low[hard] = np.fmax(low[hard], better)
            lows[left] = low
        kept, broken = high < 1, low > 1
        if precision is not None:
            kept &= 1 - high > 0.5 * (1 - low)
            broken &= high - low < precision * low
        going = ~kept & ~broken & (mean >= 1e-13 * begun) & np.isfinite(now.force).all((1, 2))
        if not going.any():
            break
        left, program, level, begun = left[going], program.at(going), level[going], begun[going]
        now = _Residuals(*(part[going] for part in now))
        point, change = _step(program, point.at(going), now, 0.0 * begun, total[going] - 1)
        most = most[going] + change
    return (lows, highs), result


def _lower(program: Program, level: np.ndarray, point: _Point, force: np.ndarray) -> np.ndarray:
    """The bound from below. Forces that are left over could move it by their work."""
    work = _balance(program, force, point.x)[1]
    reached = (level * (point.push[:, 0] - point.push[:, 1])).sum((1, 2))
    return (reached - 2 * work) / point.push.sum((1, 2, 3))


def _balanced(program: Program, level: np.ndarray, point: _Point, floor: float) -> np.ndarray:
    """The bound from below, after small changes of the multipliers by which forces balance.

    Newton's steps leave of a multiplier what rounding makes of a stiff row. Changes ``w G x`` that
    take away the forces that are left solve a problem with the weights ``w``, about the multipliers
    themselves, which is not stiff. One side of a row gives way before the other pushes: none is
    negative. What holds a motion is not always among the rows that push: others get a little.
    """
    live = program.scale != 0
    stiff = point.push.sum(1) + _wide(floor * point.push.max((1, 2, 3)))[:, 0] * live
    system = System(program._replace(cost=0 * program.cost), stiff)
    now = _residuals(program, level, point, np.zeros(len(level)), linear=True)
    dx, dy = system.solve(-now.force, np.zeros(point.y.shape))
    force = stiff * program.rows(dx)
    change = np.stack([force, -force], 1)
    taken = np.minimum((-change).clip(0), point.push)
    push = point.push - taken + (np.abs(force)[:, None] - taken[:, ::-1]) * (change > 0)
    point = point._replace(y=point.y + dy, push=push)
    now = _residuals(program, level, point, np.zeros(len(level)), linear=True)
    return _lower(program, level, point, now.force)


def _settle(
    program: Program, level: np.ndarray, guess: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """From a guess to the rows that are active; which joints are at a kink, and which are done."""
    sign = np.where(program.scale != 0, guess, 0).astype(np.int8)
    best, least = sign.copy(), np.full(len(level), np.inf)
    kink, left = np.ones(len(level), bool), np.arange(len(level))
    for turn in range(_ROUNDS):
        some, own, now = program.at(left), level[left], sign[left]
        still = (part[:, None] for part in _still(some))
        x, _, force = (part[:, 0] for part in meet(some, now != 0, (now - own)[:, None], *still))
        reached = own + some.rows(x)
        live, give = some.scale != 0, stiffness(some, now != 0)
        over = np.where((now == 0) & live, np.abs(reached) - 1, 0.0)
        # By how much a row would leave its limit inwards if nothing held it there: what multipliers
        # of neighbours are is rounding where jerks of one step decide it.
        # So only the ends of a run may leave it.
        sides = np.pad(now, ((0, 0), (0, 0), (1, 1)))
        ends = (now != 0) & ((sides[..., 2:] != now) | (sides[..., :-2] != now))
        under = np.where(ends, -force * now / np.where(ends, give, 1.0), 0.0)
        wrong = np.maximum(over, under)
        worst = wrong.max((1, 2), keepdims=True)
        missed = (np.abs(now * reached - 1) * (now != 0)).max((1, 2))
        excess = np.maximum(worst[:, 0, 0], missed)
        # Rows that depend on one another come and go together: then one at a time.
        turned = (wrong > _EXCESS) & ((wrong == worst) | (turn < _TOGETHER))
        better = left[excess < least[left]]
        best[better], least[better] = sign[better], excess[excess < least[left]]
        settled = worst[:, 0, 0] <= _EXCESS
        kink[left[settled]] = _near(some, reached, now, force)[settled]
        sign[left] = np.where(turned, np.where(now == 0, np.sign(reached), 0), now)
        left = left[~settled & np.isfinite(excess)]
        if not left.size:
            break
    settled = least <= _NEAR
    return best, kink | ~settled, settled


def _near(program: Program, reached: np.ndarray, sign: np.ndarray, force: np.ndarray) -> np.ndarray:
    """Whether a row is met without a push, or pushes as good as nothing: ``[batch]``."""
    most = np.abs(force).max((1, 2), keepdims=True, initial=1.0)
    met = (sign == 0) & (np.abs(reached) > 1 - _NEAR) & (program.scale != 0)
    idle = (sign != 0) & (np.abs(force) < _WEAK * most)
    return (met | idle).any((1, 2))
