"""Interior points on the CPU, compiled by numba: one joint after another, within a core's cache.

The same steps as `_reference`, which explains them. What differs is the order of work: a joint is
solved to the end before the next begins, so that its few arrays stay near, and predictor and
corrector share one factor.
"""

# Long: one method, step by step.

import numpy as np
import torch
from torch import Tensor

from pullback.internal.kernels._cpu import compile_kernel, compile_part
from pullback.internal.kernels._threads import count_threads, in_memory, run_slices
from pullback.trajectory.kernels.programs._cubic import (
    metric_band,
)
from pullback.trajectory.kernels.programs._problem import (
    EXCESS,
    FLOOR,
    GAP,
    ITERATIONS,
    KINDS,
    POLISH,
    ROWS,
    TOLERANCE,
    Problem,
    Unknowns,
)

__all__ = ["solve_problems"]

# What a problem costs, in the elements by which it is decided whether threads are worth it.
_WORK = 1 << 16
# Rows of zeros around what a recurrence over three neighbours runs along.
_PAD = 3
# Zeros after the coefficients, so that a row of any form may read four of them.
_AFTER = 2
_FORMS = np.array([(*form, *[0.0] * (4 - len(form))) for form in ROWS.values()])
_LENGTHS = np.array([len(form) for form in ROWS.values()])
_EPSILON = float(np.finfo(np.float64).eps)
_TINY = float(np.finfo(np.float64).tiny)

_LOOSE = {"contract", "nsz", "reassoc"}
_kernel = compile_kernel(nogil=True, fastmath=_LOOSE)
_part = compile_part(nogil=True, fastmath=_LOOSE)
_part_inside = compile_part(nogil=True, fastmath=_LOOSE, inline="always")
# The largest of many is found four at a time only where none of them is NaN: see `_solve`.
_part_finite = compile_part(nogil=True, fastmath={*_LOOSE, "nnan"})


def solve_problems(problem: Problem) -> tuple[Unknowns, Tensor]:
    """`_reference.solve_problems` for float64 tensors on the CPU."""
    batch, rows = problem.level.shape[:-1], problem.level.shape[-1]
    count, (few, size) = batch.numel(), problem.conditions.shape[-2:]
    level = problem.level.reshape(count, rows)
    scale = problem.scale.expand(*batch, rows).reshape(count, rows)
    energy = problem.energy.expand(batch).reshape(count)
    # Joints usually share their conditions: they are not copied for each.
    joints = problem.conditions.shape[-3] if problem.conditions.dim() > 2 else 1
    conditions = problem.conditions.expand(*batch[:-1], joints, few, size)
    conditions = conditions.reshape(conditions.shape[:-2].numel(), few, size)
    metric = metric_band(problem.order, problem.samples, torch.device("cpu")).T
    kinds = torch.tensor([KINDS.index(kind) for kind in problem.kinds], device="cpu")
    sizes = [(count, size), (count, few), (count, 2, rows), (count, 2, rows)]
    found = Unknowns(*(level.new_empty(shape) for shape in sizes))
    solved = level.new_empty(count, dtype=torch.bool)
    given = {
        "level": level,
        "scale": scale,
        "conditions": conditions,
        "energy": energy,
        "metric": metric,
    }
    arguments = {
        "order": problem.order,
        "kinds": kinds.numpy(),
        **{n: in_memory(part, torch.float64).detach().numpy() for n, part in given.items()},
        **{name: part.numpy() for name, part in found._asdict().items()},
        "solved": solved.numpy(),
    }
    run_slices(_solve_slice, arguments, count, count_threads(count, count * _WORK))
    shapes = [(*batch, *shape[1:]) for shape in sizes]
    shaped = [part.reshape(shape) for part, shape in zip(found, shapes, strict=True)]
    return Unknowns(*shaped), solved.reshape(batch)


@_part
def _apply_rows(kinds, scale, x, rows):
    """Rows of the limits times coefficients ``x``, which `_AFTER` zeros follow."""
    begin = 0
    for kind in kinds:
        a, b, c, d = _FORMS[kind]
        end = begin + x.shape[0] - _AFTER + 1 - _LENGTHS[kind]
        some, unit = rows[begin:end], scale[begin:end]
        x1, x2, x3 = x[1:], x[2:], x[3:]
        for k in range(some.shape[0]):
            some[k] = unit[k] * (a * x[k] + b * x1[k] + c * x2[k] + d * x3[k])
        begin = end


@_part
def _pull_rows(kinds, scale, rows, x):
    """Add the transpose of `_apply_rows` to ``x``."""
    begin = 0
    for kind in kinds:
        end = begin + x.shape[0] - _AFTER + 1 - _LENGTHS[kind]
        some, unit = rows[begin:end], scale[begin:end]
        for offset in range(4):
            weight = _FORMS[kind, offset]
            if weight != 0:
                moved = x[offset:]
                for k in range(some.shape[0]):
                    moved[k] += weight * unit[k] * some[k]
        begin = end


@_part
def _pull_metric(order, x, unit, out):
    """Add the metric times ``x``, from second or third differences, to ``out``."""
    for k in range(x.shape[0] - _AFTER - 3):
        before = x[k] - 2 * x[k + 1] + x[k + 2]
        after = x[k + 1] - 2 * x[k + 2] + x[k + 3]
        if order == 3:
            jerk = unit * (after - before)
            out[k] -= jerk
            out[k + 1] += 3 * jerk
            out[k + 2] -= 3 * jerk
            out[k + 3] += jerk
        else:
            first, second = unit * (2 * before + after) / 6, unit * (before + 2 * after) / 6
            out[k] += first
            out[k + 1] += second - 2 * first
            out[k + 2] += first - 2 * second
            out[k + 3] += second


@_part
def _support(conditions, support):
    """Where each condition begins and ends to be anything but zero."""
    size = conditions.shape[1]
    for row in range(conditions.shape[0]):
        low, high = 0, size
        while low < size - 1 and conditions[row, low] == 0:
            low += 1
        while high > low + 1 and conditions[row, high - 1] == 0:
            high -= 1
        support[row, 0], support[row, 1] = low, high


@_part
def _assemble(problem, metric, push, inverse, weights, band):
    """The band of the metric, rows and conditions: ``band[d, i + 3]`` is ``H[i, i - d]``."""
    kinds, _, _, scale, conditions, support, unit = problem
    size = metric.shape[1]
    for d in range(4):
        for i in range(size):
            band[d, i + _PAD] = unit * metric[d, i]
    upper, lower, over, under = push[0], push[1], inverse[0], inverse[1]
    for k in range(weights.shape[0]):
        weights[k] = scale[k] * scale[k] * (upper[k] * over[k] + lower[k] * under[k])
    begin = 0
    for kind in kinds:
        end = begin + size + 1 - _LENGTHS[kind]
        some = weights[begin:end]
        for i in range(4):
            for j in range(i + 1):
                product = _FORMS[kind, i] * _FORMS[kind, j]
                if product != 0:
                    diagonal = band[i - j, i + _PAD :]
                    for k in range(some.shape[0]):
                        diagonal[k] += product * some[k]
        begin = end
    for row in range(conditions.shape[0]):
        low, high = support[row]
        for i in range(low, high):
            for j in range(max(low, i - _PAD), i + 1):
                band[i - j, i + _PAD] += unit * conditions[row, i] * conditions[row, j]


@_part
def _factorise(band):
    """Overwrite ``H`` by the ``L`` and ``1 / D`` of ``L D L'``; whether it is definite."""
    definite = True
    for i in range(_PAD, band.shape[1]):
        third = band[3, i]
        second = band[2, i] - third * band[1, i - 2]
        first = band[1, i] - third * band[2, i - 1] - second * band[1, i - 1]
        low3, low2 = third * band[0, i - 3], second * band[0, i - 2]
        low1 = first * band[0, i - 1]
        pivot = band[0, i] - third * low3 - second * low2 - first * low1
        definite &= pivot > 0
        band[0, i], band[1, i], band[2, i], band[3, i] = 1 / pivot, low1, low2, low3
    return definite


@_part
def _substitute(band, x):
    """Overwrite ``x [size + 6, columns]``, zeros in the first and last 3 rows, by ``H^-1 x``."""
    last, columns = band.shape[1], x.shape[1]
    for i in range(_PAD, last):
        a, b, c = band[1, i], band[2, i], band[3, i]
        for m in range(columns):
            x[i, m] -= c * x[i - 3, m] + b * x[i - 2, m] + a * x[i - 1, m]
    for i in range(last - 1, _PAD - 1, -1):
        scale = band[0, i]
        a = band[1, i + 1] if i + 1 < last else 0.0
        b = band[2, i + 2] if i + 2 < last else 0.0
        c = band[3, i + 3] if i + 3 < last else 0.0
        for m in range(columns):
            x[i, m] = scale * x[i, m] - (c * x[i + 3, m] + b * x[i + 2, m] + a * x[i + 1, m])


@_part
def _substitute_one(band, x):
    """`_substitute` for one column, its last three entries in registers."""
    last, near, middle, far = band.shape[1], 0.0, 0.0, 0.0
    for i in range(_PAD, last):
        ahead = x[i] - band[3, i] * far - band[2, i] * middle
        near, middle, far = ahead - band[1, i] * near, near, middle
        x[i] = near
    near = middle = far = 0.0
    low1 = low2 = low3 = next2 = next3 = after3 = 0.0
    for i in range(last - 1, _PAD - 1, -1):
        ahead = band[0, i] * x[i] - low3 * far - low2 * middle
        near, middle, far = ahead - low1 * near, near, middle
        x[i] = near
        # Row i + d holds what column i needs of diagonal d.
        low3, next3, after3 = next3, after3, band[3, i]
        low2, next2 = next2, band[2, i]
        low1 = band[1, i]


@_part
def _spread_conditions(band, conditions, support, spread, schur):
    """``H^-1 A'`` as columns, and the ``L D L'`` of ``A H^-1 A'``."""
    few = conditions.shape[0]
    spread[:] = 0
    for row in range(few):
        for i in range(support[row, 0], support[row, 1]):
            spread[i + _PAD, row] = conditions[row, i]
    _substitute(band, spread)
    for row in range(few):
        for column in range(row + 1):
            total = 0.0
            for i in range(support[row, 0], support[row, 1]):
                total += conditions[row, i] * spread[i + _PAD, column]
            for k in range(column):
                total -= schur[row, k] * schur[column, k] * schur[k, k]
            schur[row, column] = total / schur[column, column] if column < row else total


@_part
def _residuals(problem, point, dual, missed):
    """What is missed of stationarity, and of the definitions of both slacks."""
    kinds, order, level, scale, conditions, support, unit = problem
    x, y, slack, push = point
    upper, lower = push[0], push[1]
    dual[:] = 0
    _pull_metric(order, x, unit, dual)
    above, below = missed[0], missed[1]
    for k in range(level.shape[0]):
        below[k] = upper[k] - lower[k]
    _pull_rows(kinds, scale, below, dual)
    for row in range(conditions.shape[0]):
        for i in range(support[row, 0], support[row, 1]):
            dual[i] += y[row] * conditions[row, i]
    _apply_rows(kinds, scale, x, above)
    high, low = slack[0], slack[1]
    for k in range(level.shape[0]):
        reached = level[k] + above[k]
        above[k] = reached + high[k] - 1
        below[k] = low[k] - reached - 1


@_part
def _solve_conditioned(problem, factors, x, right, dx, dy):
    """Solve ``H dx + A' dy = right`` and ``A (x + dx) = 0``; overwrites ``right``."""
    conditions, support, unit = problem[4:]
    band, spread, schur = factors
    few, size = conditions.shape
    for row in range(few):
        dy[row] = 0
        for i in range(support[row, 0], support[row, 1]):
            dy[row] += conditions[row, i] * x[i]
        for i in range(support[row, 0], support[row, 1]):
            right[i + _PAD] -= unit * dy[row] * conditions[row, i]
    _substitute_one(band, right)
    for row in range(few):
        for i in range(support[row, 0], support[row, 1]):
            dy[row] += conditions[row, i] * right[i + _PAD]
        for k in range(row):
            dy[row] -= schur[row, k] * dy[k]
    for row in range(few - 1, -1, -1):
        dy[row] /= schur[row, row]
        for k in range(row + 1, few):
            dy[row] -= schur[k, row] * dy[k]
    for i in range(size):
        total = right[i + _PAD]
        for row in range(few):
            total -= dy[row] * spread[i + _PAD, row]
        dx[i] = total


@_part
def _newton(problem, point, factors, inverse, dual, missed, wanted, right, step):
    """The step by which the products of slacks and multipliers change by ``wanted``."""
    kinds, scale = problem[0], problem[3]
    x, _, _, push = point
    dx, dy, dslack, dpush = step
    pull = dslack[0]
    for side in range(2):
        sign, w, z, m, over = 1 - 2 * side, wanted[side], push[side], missed[side], inverse[side]
        for k in range(pull.shape[0]):
            part = (w[k] + z[k] * m[k]) * over[k]
            pull[k] = part if side == 0 else pull[k] + sign * part
    dx[:] = 0
    _pull_rows(kinds, scale, pull, dx)
    right[:] = 0
    for i in range(dual.shape[0] - _AFTER):
        right[i + _PAD] = -dual[i] - dx[i]
    _solve_conditioned(problem, factors, x, right, dx, dy)
    dx[-_AFTER:] = 0
    _apply_rows(kinds, scale, dx, dslack[1])
    moved = dslack[1]
    for side in range(2):
        sign, w, z, m, over = 1 - 2 * side, wanted[side], push[side], missed[side], inverse[side]
        ds, dz = dslack[side], dpush[side]
        for k in range(moved.shape[0]):
            ds[k] = -m[k] - sign * moved[k]
            dz[k] = (w[k] - z[k] * ds[k]) * over[k]


@_part_finite
def _reach(point, step, inverse):
    """How much of a step leaves slacks and multipliers positive."""
    ds, under, dt, over = step[2][0], inverse[0], step[2][1], inverse[1]
    dz, z, dy, y = step[3][0], point[3][0], step[3][1], point[3][1]
    # Four chains of comparisons, so that none waits for another.
    one = two = three = four = 0.0
    for k in range(z.shape[0]):
        one, two = max(one, -ds[k] * under[k]), max(two, -dt[k] * over[k])
        three, four = max(three, -dz[k] / z[k]), max(four, -dy[k] / y[k])
    steepest = max(one, two, three, four)
    return 0.995 / steepest if steepest > 0.995 else 1.0


@_part
def _mean_product(point, step, length):
    total = 0.0
    for side in range(2):
        slack, dslack, push, dpush = point[2][side], step[2][side], point[3][side], step[3][side]
        for k in range(slack.shape[0]):
            total += (slack[k] + length * dslack[k]) * (push[k] + length * dpush[k])
    return total / (2 * point[2].shape[1])


@_part
def _want(point, step, target, product, wanted):
    """What the products are to change by, less a part of those of the predictor's steps."""
    part = 1.0 if product else 0.0
    for side in range(2):
        w, s, z = wanted[side], point[2][side], point[3][side]
        ds, dz = step[2][side], step[3][side]
        for k in range(w.shape[0]):
            w[k] = target - s[k] * z[k] - part * ds[k] * dz[k]


@_part_finite
def _largest(values):
    largest = 0.0
    for k in range(values.shape[0]):
        largest = max(largest, abs(values[k]))
    return largest


@_part_finite
def _largest_force(problem, point):
    scale, push, force = problem[3], point[3], 0.0
    for side in range(2):
        z = push[side]
        for k in range(z.shape[0]):
            force = max(force, z[k] * scale[k])
    return force


@_part_finite
def _converged(problem, point, dual, missed, force, gap):
    scale, unit = problem[3], problem[6]
    x, _, slack, push = point
    off = 0.0
    for side in range(2):
        s, z = slack[side], push[side]
        for k in range(s.shape[0]):
            off = max(off, abs(s[k] * z[k] - gap))
    if off > 0.1 * gap:
        return False
    furthest = max(_largest(missed[0]), _largest(missed[1]))
    largest, steepest, unbalanced = _largest(x), _largest(scale), _largest(dual)
    # Rows and metric take differences of x: their rounding is the floor, however near it is.
    noise = _EPSILON * largest
    near = furthest < 1e-11 + 8 * noise * steepest
    return near and unbalanced < TOLERANCE * (force + _TINY) + 64 * noise * unit


@_part
def _begin(level, point):
    """The motion without limits, with slacks as if it kept them; whether it does."""
    x, y, slack, push = point
    x[:], y[:], push[:] = 0, 0, 1
    kept = True
    for k in range(level.shape[0]):
        slack[0, k], slack[1, k] = max(1 - level[k], 0.1), max(1 + level[k], 0.1)
        kept &= abs(level[k]) <= 1
    return kept


@_part
def _invert(values, out):
    for side in range(2):
        given, found = values[side], out[side]
        for k in range(given.shape[0]):
            found[k] = 1 / given[k]


@_part
def _move(point, step, length):
    """Take a part of a step."""
    x, dx, y, dy = point[0], step[0], point[1], step[1]
    for k in range(x.shape[0]):
        x[k] += length * dx[k]
    for row in range(y.shape[0]):
        y[row] += length * dy[row]
    for side in range(2):
        s, ds, z, dz = point[2][side], step[2][side], point[3][side], step[3][side]
        for k in range(s.shape[0]):
            s[k] += length * ds[k]
            z[k] += length * dz[k]


@_part_inside
def _solve(problem, metric, point, step, work):
    """Move a point to the solution; whether it got there."""
    conditions, support = problem[4:6]
    dual, missed, wanted, inverse, right, band, spread, schur = work
    factors = (band, spread, schur)
    if _begin(problem[2], point):
        return True
    goal = min(GAP, EXCESS / (4 * problem[2].shape[0]))
    done, left, gap = False, POLISH, goal
    for _ in range(ITERATIONS + POLISH):
        mean = _mean_product(point, step, 0.0)
        # What is not a number will not become one again.
        if not mean < np.inf:
            return False
        _residuals(problem, point, dual, missed)
        if not done:
            force = _largest_force(problem, point)
            gap = max(goal, FLOOR * force * force / problem[6])
            done = _converged(problem, point, dual, missed, force, gap)
        if done and left == 0:
            break
        _invert(point[2], inverse)
        _assemble(problem, metric, point[3], inverse, wanted[0], band)
        if not _factorise(band):
            break
        _spread_conditions(band, conditions, support, spread, schur)
        left -= done
        # A predictor and a corrector; one step alone where only rounding is left.
        target, length, product = gap if done else 0.0, 0.0, False
        for turn in range(1 if done else 2):
            if turn:
                after = _mean_product(point, step, length)
                target = max((after / mean) ** 3 * mean, gap)
                product = mean >= 100 * gap
            _want(point, step, target, product, wanted)
            _newton(problem, point, factors, inverse, dual, missed, wanted, right, step)
            length = _reach(point, step, inverse)
        _move(point, step, length)
    return done


@_kernel
def _solve_slice(
    order, kinds, level, scale, conditions, energy, metric, x, y, slack, push, solved, first, last
):
    """Solve the problems from ``first`` to ``last``."""
    rows, (few, size) = level.shape[1], conditions.shape[1:]
    joints = level.shape[0] // conditions.shape[0]
    support = np.empty((few, 2), np.int64)
    near = np.zeros(size + _AFTER)
    step = (np.zeros(size + _AFTER), np.zeros(few), np.zeros((2, rows)), np.zeros((2, rows)))
    work = (
        np.zeros(size + _AFTER),
        np.zeros((2, rows)),
        np.zeros((2, rows)),
        np.zeros((2, rows)),
        np.zeros(size + _PAD),
        np.zeros((4, size + _PAD)),
        np.zeros((size + 2 * _PAD, few)),
        np.zeros((few, few)),
    )
    for item in range(first, last):
        rows_of = conditions[item // joints]
        if item == first or item % joints == 0:
            _support(rows_of, support)
        problem = (kinds, order, level[item], scale[item], rows_of, support, 1 / energy[item])
        point = (near, y[item], slack[item], push[item])
        solved[item] = _solve(problem, metric, point, step, work)
        for k in range(size):  # a slice would compile numba's text for a shape that differs
            x[item, k] = near[k]
