"""Which limits are active, and whether limits can be kept at all.

The multipliers of interior points (`_interior`) say which rows are active, and from there rows are
dropped that do not push, and added that are exceeded, until the motion that meets the active ones
exactly is the least. Whether limits can be kept at all, a linear program decides.

Source: Nocedal and Wright, Numerical Optimization, section 16.5.
"""

from typing import NamedTuple

import numpy as np

from pullback.trajectory.kernels.states._interior import (
    SIGN,
    Point,
    begin,
    interior,
    is_least,
    linear,
    restart,
    those,
)
from pullback.trajectory.kernels.states._program import Program, meet, pick, stiffness

__all__ = ["Found", "bound", "search"]

_ROUNDS, _TOGETHER = 24, 8
# The products of a slack and its multiplier at which active rows are told, as a part of the largest
# multiplier: a first one for nearly all motions, one that is small enough to prove that what it is
# met by is the least motion, and one that tells rows beside one another.
_GAPS = 1e-9, 1e-10, 1e-12
# From a motion that keeps its limits with little room: at once to a small gap, springs become so
# stiff that rounding leaves no matrix.
_CAREFUL = 1e-7, 1e-8, 1e-9, 3e-10, 1e-10, 1e-12
# What a row may exceed its limit by, as a part of it, and how near to it a row is met: with a
# multiplier below a part of the largest one, or of the cost, that is a kink.
_EXCESS = 5e-13
_NEAR = 1e-10
_WEAK = 1e-9
# How many times the push of one row that of its mirror image may be.
_ALIKE = 1.001
# Of a limit, by what a row would leave it that does not push.
_IDLE = 1e-8


class Found(NamedTuple):
    """What is known of each joint."""

    # [kinds, samples, batch], 1 where the upper end of a range is met and pushes, -1 the lower one.
    # What is met without a push is none of these: its derivatives are those of the side without it.
    active: np.ndarray
    # [batch], whether a row is met that does not push: the least change makes it active or not.
    kink: np.ndarray
    found: np.ndarray  # [batch], whether a motion within limits was found and proven the least
    # [4, samples, batch], the motion itself where its active rows alone do not give it, else NaN.
    x: np.ndarray


@np.errstate(all="ignore")  # what is no number any more is left out
def search(program: Program, level: np.ndarray) -> Found:
    """Find the active rows of each joint, and prove that what they hold is the least motion."""
    samples, batch = level.shape[1:]
    active, kink = np.zeros(level.shape, np.int8), np.zeros(batch, bool)
    found = np.asarray((np.abs(level) <= 1).all((0, 1)))
    fixed = ((program.scale == 0) & (np.abs(level) > 1)).any((0, 1))
    left = those(~found & ~fixed & np.isfinite(level).all((0, 1)))
    kink[found] = _near(program, level, active, 0 * level)[found]
    whole = Found(active, kink, found, np.full((4, samples, batch), np.nan))
    # One of 1,500 random programs is found from a motion within its limits alone.
    for start in (False, True):
        if not left.size:
            break
        some, own = program.at(left), pick(level, left)
        point = begin(some, own)
        if start:
            bounds, point = linear(some, own, 1e-6)
            kept = those(bounds[1] < 1)
            left, some, own = left[kept], some.at(kept), pick(own, kept)
            if not left.size:
                break
            point = restart(some, own, pick(point.x, kept))
        gaps = _CAREFUL if start else _GAPS
        for part, value in zip(whole, _least(some, own, point, gaps), strict=True):
            part[..., left] = value
        left = left[those(~found[left])]
    return whole


def _least(program: Program, level: np.ndarray, point: Point, gaps: tuple[float, ...]) -> Found:
    """What is found from interior points on, with ever smaller gaps: each tells rows more surely.

    What the rows do not hold is the interior point of the last gap reached, if it is proven.
    """
    active, batch = np.zeros(level.shape, np.int8), level.shape[-1]
    kink, found, x = np.ones(batch, bool), np.zeros(batch, bool), np.full(point.x.shape, np.nan)
    left = np.arange(batch)

    def narrow(mask: np.ndarray) -> bool:
        nonlocal left, program, level, point
        some = those(mask)
        left, program, level = left[some], program.at(some), pick(level, some)
        point = point.at(some)
        return bool(some.size)

    for gap in gaps:
        point, reached = interior(program, level, point, gap)
        if not narrow(reached):
            break
        sign, kink[left], met = _settle(program, level, _pushing(point))
        push, give = met.push.sum(0), stiffness(program, sign != 0)
        # Without them the motion would be where it is: beside a large multiplier a small one is not
        # yet nothing.
        idle = _idle(sign, push) & (push <= _IDLE * give)
        found[left] = is_least(program, level, met)
        active[..., left] = np.where(idle, 0, sign)
        x[..., left] = np.where(idle.any((0, 1)), met.x, np.nan)
        if not narrow(~found[left]):
            break
        found[left] = inside = is_least(program, level, point)
        x[..., left[inside]] = point.x[..., inside]
    return Found(active, kink, found, x)


@np.errstate(all="ignore")
def bound(
    program: Program, level: np.ndarray, precision: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """How many times as wide limits need to be, at least and at most, ``[batch]``.

    To a relative precision, or until it is known whether that is more or less than one.
    """
    high = np.abs(level).max((0, 1))
    low, hard = np.zeros(len(high)), those(high > 1)  # others keep their limits as they are
    if hard.size:
        low[hard], high[hard] = linear(program.at(hard), pick(level, hard), precision)[0]
    peak = np.where(program.scale == 0, np.abs(level), 0.0).max((0, 1))
    return np.where(peak > 1, np.maximum(low, peak), low), np.where(
        peak > 1, np.maximum(high, peak), high
    )


def _pushing(point: Point) -> np.ndarray:
    """The rows that push, as signs: those whose multiplier is larger than their slack."""
    most = point.push.max((0, 1, 2)).clip(1)
    return np.where(point.push > most * point.slack, SIGN, 0).sum(0).astype(np.int8)


def _settle(
    program: Program, level: np.ndarray, guess: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Point]:
    """From a guess to the rows that are active; which joints are at a kink, and their motions."""
    sign = np.where(program.scale != 0, guess, 0).astype(np.int8)
    best, least = sign.copy(), np.full(level.shape[-1], np.inf)
    kink, left = np.ones(len(least), bool), np.arange(len(least))
    met = begin(program, np.nan * level)
    for turn in range(_ROUNDS):
        some, own, now = program.at(left), pick(level, left), pick(sign, left)
        zeros = np.zeros((1, 4, *own.shape[1:])), np.zeros((1, *some.place.shape))
        (x,), (y,), (force,), (moved,) = meet(some, now != 0, (now - own)[None], *zeros)
        reached, live, give = own + moved, some.scale != 0, stiffness(some, now != 0)
        over = np.where((now == 0) & live, np.abs(reached) - 1, 0.0)
        # By how much a row would leave its limit inwards if nothing held it there: multipliers of
        # stiff rows beside one another are large, and what is rounding of them moves nothing.
        under = np.where(now != 0, -force * now / np.where(now != 0, give, 1.0), 0.0)
        wrong = np.maximum(over, under)
        worst = wrong.max((0, 1))
        missed = (np.abs(now * reached - 1) * (now != 0)).max((0, 1))
        excess = np.maximum(worst, missed)
        # Rows that depend on one another come and go together: then one at a time.
        turned = (wrong > _EXCESS) & ((wrong == worst) | (turn < _TOGETHER))
        better = excess < least[left]
        best[..., left[better]], least[left[better]] = now[..., better], excess[better]
        motion = Point(x, y, moved, 1 - SIGN * reached, (SIGN * force).clip(0))
        for part, value in zip(met, motion, strict=True):
            part[..., left[better]] = value[..., better]
        settled = worst <= _EXCESS
        kink[left[settled]] = _near(some, reached, now, force)[settled]
        sign[..., left] = np.where(turned, np.where(now == 0, np.sign(reached), 0), now)
        left = left[those(~settled & np.isfinite(excess))]
        if not left.size:
            break
    return best, kink | (least > _NEAR), met


def _near(program: Program, reached: np.ndarray, sign: np.ndarray, force: np.ndarray) -> np.ndarray:
    """Whether a row is met without a push, or pushes as good as nothing: ``[batch]``."""
    met = (sign == 0) & (np.abs(reached) > 1 - _NEAR) & (program.scale != 0)
    return (met | _idle(sign, np.abs(force))).any((0, 1))


def _idle(sign: np.ndarray, push: np.ndarray) -> np.ndarray:
    """Which active rows push as good as nothing.

    Rows that mirror one another push alike but for rounding: with one the other does, or what is
    left active would be those of neither side.
    """
    weak = (sign != 0) & (push < _WEAK * push.max((0, 1), initial=1.0))
    return (sign != 0) & (push <= _ALIKE * np.where(weak, push, 0.0).max((0, 1), initial=0.0))
