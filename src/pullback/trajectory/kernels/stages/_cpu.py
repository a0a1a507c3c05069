"""Interior points over the states of a motion, compiled by numba: slower, and sound to the limit.

The unknowns are position, velocity and acceleration at each sample and the jerk of each step, in
units of the whole duration. A step of Newton's method is then a problem of optimal control with
quadratic costs, solved by Riccati's recursion from the last sample to the first. Nothing is
differenced, so that its condition does not grow with the sixth power of the samples as that of
spline coefficients does (`pullback.trajectory.kernels.programs`).

With rows ``g = level + scale (e s + f u)`` of states ``s`` and jerks ``u``, conditions
``A (s, u) = 0`` and both signs ``o`` of each row, two programs are solved:

    least bound    minimise t            with  o g + slack = t        (a linear program)
    least cost     minimise x' P x / 2   with  o g + slack = 1

The first one decides whether limits can be kept: any motion gives a bound from above, and any
multipliers ``z >= 0``, ``sum z = 1``, ``G' (o z) + A' y = 0`` one from below, since
``t >= sum_o z o (level + G x) = level' (o z)`` for all ``x`` with ``A x = 0``.

Sources: Nocedal and Wright, Numerical Optimization, chapter 14 and section 16.6; Rao, Wright and
Rawlings, Application of interior-point methods to model predictive control, 1998, section 3.
"""

import numpy as np

from pullback.internal.kernels._cpu import compile_kernel, compile_part

__all__ = ["least_bound", "least_cost"]

_ITERATIONS = 120
# Of the largest part of the matrix: what no row and no cost holds is held by this.
_PROXIMAL = 1e-13
_kernel, _part = compile_kernel(nogil=True), compile_part(nogil=True)


@_kernel
def _read_rows(problem, s, u, g):
    """The rows at states ``s [samples, 3]`` and jerks ``u``, without their levels."""
    scale, form = problem[1], problem[2]
    for c in range(scale.shape[0]):
        e0, e1, e2, f = form[c]
        for k in range(scale.shape[1]):
            jerk = u[k] if k < u.shape[0] else 0.0
            g[c, k] = scale[c, k] * (e0 * s[k, 0] + e1 * s[k, 1] + e2 * s[k, 2] + f * jerk)


@_part
def _pull_rows(problem, weights, q, r):
    """Add the transpose of `_read_rows` to ``q [samples, 3]`` and ``r``."""
    scale, form = problem[1], problem[2]
    for c in range(scale.shape[0]):
        e0, e1, e2, f = form[c]
        for k in range(scale.shape[1]):
            push = scale[c, k] * weights[c, k]
            q[k, 0] += e0 * push
            q[k, 1] += e1 * push
            q[k, 2] += e2 * push
            if k < r.shape[0]:
                r[k] += f * push


@_part
def _read_condition(problem, i, s, u):
    place, alpha = problem[3], problem[4]
    k = place[i]
    total = alpha[i, 0] * s[k, 0] + alpha[i, 1] * s[k, 1] + alpha[i, 2] * s[k, 2]
    return total + alpha[i, 3] * u[k] if k < u.shape[0] else total


@_part
def _pull_conditions(problem, y, q, r):
    place, alpha = problem[3], problem[4]
    for i in range(place.shape[0]):
        k = place[i]
        for d in range(3):
            q[k, d] += alpha[i, d] * y[i]
        if k < r.shape[0]:
            r[k] += alpha[i, 3] * y[i]


@_part
def _pull_cost(cost, s, u, q, r):
    """Add the gradient of the cost ``(c_aa a^2 + 2 c_au a u + c_uu u^2) / 2`` of each step."""
    for k in range(u.shape[0]):
        q[k, 2] += cost[0] * s[k, 2] + cost[1] * u[k]
        r[k] += cost[1] * s[k, 2] + cost[2] * u[k]


@_part
def _assemble(problem, cost, stiff, blocks):
    """The 4 x 4 blocks of states and jerk at each sample; the weight given to conditions."""
    scale, form, place, alpha = problem[1], problem[2], problem[3], problem[4]
    samples = scale.shape[1]
    blocks[:] = 0
    for k in range(samples - 1):
        blocks[k, 2, 2] += cost[0]
        blocks[k, 2, 3] += cost[1]
        blocks[k, 3, 3] += cost[2]
    for c in range(scale.shape[0]):
        for k in range(samples):
            weight = scale[c, k] * scale[c, k] * stiff[c, k]
            for i in range(4):
                for j in range(i, 4):
                    blocks[k, i, j] += weight * form[c, i] * form[c, j]
    largest = mean = 0.0
    for k in range(samples - 1):
        # What it costs to move by one within one: the unit of time is the whole duration.
        here = blocks[k, 3, 3] + blocks[k, 2, 2] + blocks[k, 1, 1] + blocks[k, 0, 0]
        largest = max(largest, here)
        mean += here
    weight = 100.0 * mean / (samples - 1)
    for k in range(samples - 1):
        blocks[k, 3, 3] += _PROXIMAL * largest
    for n in range(place.shape[0]):
        for i in range(4):
            for j in range(i, 4):
                blocks[place[n], i, j] += weight * alpha[n, i] * alpha[n, j]
    return weight


@_part
def _factorise(blocks, h, gains, roots, first):
    """Riccati's recursion: gains ``[steps, 3]``, pivots ``roots``, the inverse at the start."""
    # Long: one step of the recursion, written out for blocks of three.
    samples = blocks.shape[0]
    m = np.zeros((3, 3))
    for i in range(3):
        for j in range(3):
            m[i, j] = blocks[samples - 1, min(i, j), max(i, j)]
    b = np.array([h * h * h / 6, h * h / 2, h])
    closed, moved, full = np.zeros((3, 3)), np.zeros((3, 3)), np.zeros((4, 4))
    for k in range(samples - 2, -1, -1):
        for i in range(4):
            for j in range(4):
                full[i, j] = blocks[k, min(i, j), max(i, j)]
        mb0 = m[0, 0] * b[0] + m[0, 1] * b[1] + m[0, 2] * b[2]
        mb1 = m[1, 0] * b[0] + m[1, 1] * b[1] + m[1, 2] * b[2]
        mb2 = m[2, 0] * b[0] + m[2, 1] * b[1] + m[2, 2] * b[2]
        pivot = full[3, 3] + b[0] * mb0 + b[1] * mb1 + b[2] * mb2
        if not pivot > 0:
            return False
        k0 = (full[0, 3] + mb0) / pivot
        k1 = (full[1, 3] + h * mb0 + mb1) / pivot
        k2 = (full[2, 3] + h * h / 2 * mb0 + h * mb1 + mb2) / pivot
        gains[k, 0], gains[k, 1], gains[k, 2], roots[k] = k0, k1, k2, pivot
        # Joseph's form, a sum of squares, so that rounding leaves it definite.
        for i in range(3):
            closed[i, 0], closed[i, 1], closed[i, 2] = -b[i] * k0, -b[i] * k1, -b[i] * k2
            closed[i, i] += 1
        closed[0, 1] += h
        closed[0, 2] += h * h / 2
        closed[1, 2] += h
        for i in range(3):
            for j in range(3):
                moved[i, j] = (
                    m[i, 0] * closed[0, j] + m[i, 1] * closed[1, j] + m[i, 2] * closed[2, j]
                )
        for i in range(3):
            for j in range(i, 3):
                total = full[i, j] - gains[k, i] * full[3, j] - full[i, 3] * gains[k, j]
                total += gains[k, i] * full[3, 3] * gains[k, j]
                for d in range(3):
                    total += closed[d, i] * moved[d, j]
                m[i, j] = total
                m[j, i] = total
    _invert(m, first)
    return True


@_part
def _invert(matrix, inverse):
    """Invert a symmetric positive definite matrix, which is overwritten, by Gauss and Jordan."""
    size = matrix.shape[0]
    for i in range(size):
        for j in range(size):
            inverse[i, j] = 1.0 if i == j else 0.0
    for i in range(size):
        pivot = 1 / matrix[i, i]
        for j in range(size):
            matrix[i, j] *= pivot
            inverse[i, j] *= pivot
        for row in range(size):
            factor = matrix[row, i]
            if row != i and factor != 0:
                for j in range(size):
                    matrix[row, j] -= factor * matrix[i, j]
                    inverse[row, j] -= factor * inverse[i, j]


@_part
def _substitute(factors, h, q, r, s, u):
    """Solve for states and jerks; overwrites the right sides."""
    gains, roots, first = factors
    steps = r.shape[0]
    p0, p1, p2 = -q[steps, 0], -q[steps, 1], -q[steps, 2]
    for k in range(steps - 1, -1, -1):
        pull = -r[k] + h * h * h / 6 * p0 + h * h / 2 * p1 + h * p2
        r[k] = pull / roots[k]
        n1 = -q[k, 1] + h * p0 + p1 - gains[k, 1] * pull
        p2 = -q[k, 2] + h * h / 2 * p0 + h * p1 + p2 - gains[k, 2] * pull
        p0 = -q[k, 0] + p0 - gains[k, 0] * pull
        p1 = n1
    for i in range(3):
        s[0, i] = -(first[i, 0] * p0 + first[i, 1] * p1 + first[i, 2] * p2)
    for k in range(steps):
        u[k] = -r[k] - gains[k, 0] * s[k, 0] - gains[k, 1] * s[k, 1] - gains[k, 2] * s[k, 2]
        _advance(s, u, h, k)


@_part
def _advance(s, u, h, k):
    p, v, a, j = s[k, 0], s[k, 1], s[k, 2], u[k]
    s[k + 1, 0] = p + h * (v + h / 2 * (a + h / 3 * j))
    s[k + 1, 1] = v + h * (a + h / 2 * j)
    s[k + 1, 2] = a + h * j


@_part
def _spread(problem, factors, h, spread, moved, schur):
    """The inverse on each condition, and the inverse of what conditions make of it."""
    few, samples = problem[3].shape[0], problem[0].shape[1]
    one = np.zeros(few)
    for i in range(few):
        q, r = np.zeros((samples, 3)), np.zeros(samples - 1)
        one[:] = 0
        one[i] = 1
        _pull_conditions(problem, one, q, r)
        _substitute(factors, h, q, r, spread[i], moved[i])
        for j in range(few):
            schur[j, i] = _read_condition(problem, j, spread[i], moved[i])
    both = np.zeros((few, few))
    for i in range(few):
        for j in range(few):
            both[i, j] = (schur[i, j] + schur[j, i]) / 2
    _invert(both, schur)


@_part
def _solve(problem, solver, h, weight, gap, q, r, s, u, y):
    """Solve ``H x + A' y = (q, r)``, ``A x = gap``; overwrites ``q`` and ``r``."""
    factors, spread, moved, schur = solver
    few = gap.shape[0]
    missed = np.zeros(few)
    for i in range(few):
        missed[i] = weight * gap[i]
    _pull_conditions(problem, missed, q, r)
    _substitute(factors, h, q, r, s, u)
    for i in range(few):
        missed[i] = _read_condition(problem, i, s, u) - gap[i]
    for i in range(few):
        y[i] = 0
        for j in range(few):
            y[i] += schur[i, j] * missed[j]
    for i in range(few):
        for d in range(3):
            s[0, d] -= y[i] * spread[i, 0, d]
        for k in range(u.shape[0]):
            u[k] -= y[i] * moved[i, k]
    # States are integrated once more: of a difference of large motions they would keep less.
    for k in range(u.shape[0]):
        _advance(s, u, h, k)


@_part
def _balance(h, q, r, s, u):
    """What jerks and the first state feel of forces on all states: the most, and their work."""
    p0, p1, p2, most, work = 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(q.shape[0] - 1, -1, -1):
        if k < r.shape[0]:
            felt = abs(r[k] + h * h * h / 6 * p0 + h * h / 2 * p1 + h * p2)
            most, work = max(most, felt), work + felt * abs(u[k])
            p2 += h * h / 2 * p0 + h * p1
            p1 += h * p0
        p0, p1, p2 = p0 + q[k, 0], p1 + q[k, 1], p2 + q[k, 2]
    work += abs(p0 * s[0, 0]) + abs(p1 * s[0, 1]) + abs(p2 * s[0, 2])
    return max(most, abs(p0), abs(p1), abs(p2)), work


@_part
def _products(slack, dslack, a, push, dpush, b):
    """The sum of the products of slacks and multipliers after steps of lengths ``a`` and ``b``."""
    total = 0.0
    for side in range(2):
        for c in range(slack.shape[1]):
            for k in range(slack.shape[2]):
                w = slack[side, c, k] + a * dslack[side, c, k]
                total += w * (push[side, c, k] + b * dpush[side, c, k])
    return total


@_part
def _want(target, product, slack, dslack, push, dpush, wanted):
    """What products are to change by, less a part of those of the steps."""
    for side in range(2):
        for c in range(slack.shape[1]):
            for k in range(slack.shape[2]):
                w = target - slack[side, c, k] * push[side, c, k]
                wanted[side, c, k] = w - product * dslack[side, c, k] * dpush[side, c, k]


@_part
def _move(values, length, changes):
    flat, by = values.reshape(-1), changes.reshape(-1)
    for k in range(flat.shape[0]):
        flat[k] += length * by[k]


@_part
def _forces(problem, slack, push, stiff):
    """The stiffness of each row; what multipliers sum to, the largest, and their lower bound."""
    level, total, most, low = problem[0], 0.0, 0.0, 0.0
    for c in range(stiff.shape[0]):
        for k in range(stiff.shape[1]):
            above, below = push[0, c, k], push[1, c, k]
            stiff[c, k] = above / slack[0, c, k] + below / slack[1, c, k]
            total += above + below
            most = max(most, above, below)
            low += level[c, k] * (above - below)
    return total, most, low


@_part
def _longest(values, changes):
    length = 1.0
    for side in range(2):
        for c in range(values.shape[1]):
            for k in range(values.shape[2]):
                if changes[side, c, k] < 0:
                    length = min(length, -0.995 * values[side, c, k] / changes[side, c, k])
    return length


@_part
def _newton(problem, solver, h, weight, elastic, point, residuals, wanted, step):
    """A step by which slack times multiplier changes by ``wanted``; the change of the bound."""
    # Long: one system is solved, with the bound as a border of it where that may move.
    s, u, y, slack, push = point
    q, r, missed, surplus = residuals
    ds, du, dy, dslack, dpush, other = step
    scale = problem[1]
    shape = scale.shape
    pull, border, total, held = np.zeros(shape), np.zeros(shape), 0.0, 0.0
    for c in range(shape[0]):
        for k in range(shape[1]):
            if scale[c, k] == 0:
                continue
            for side in range(2):
                z, w = push[side, c, k], slack[side, c, k]
                force = (wanted[side, c, k] + z * missed[side, c, k]) / w
                sign = 1.0 - 2.0 * side
                pull[c, k] -= sign * force
                border[c, k] += sign * z / w
                total += force
                held += z / w
    right, last = np.zeros(s.shape), np.zeros(u.shape[0])
    _move(right, -1.0, q)
    _move(last, -1.0, r)
    _pull_rows(problem, pull, right, last)
    gap = np.zeros(y.shape[0])
    for i in range(gap.shape[0]):
        gap[i] = -_read_condition(problem, i, s, u)
    _solve(problem, solver, h, weight, gap, right, last, ds, du, dy)
    g, change = np.zeros(shape), 0.0
    _read_rows(problem, ds, du, g)
    if elastic:
        # The bound touches every row: one more right side, and a border of the matrix.
        right, last = np.zeros(s.shape), np.zeros(u.shape[0])
        _pull_rows(problem, border, right, last)
        os, ou, oy = other
        _solve(problem, solver, h, weight, np.zeros(gap.shape[0]), right, last, os, ou, oy)
        og = np.zeros(shape)
        _read_rows(problem, os, ou, og)
        for c in range(shape[0]):
            for k in range(shape[1]):
                total += border[c, k] * g[c, k]
                held -= border[c, k] * og[c, k]
        change = (surplus + total) / held
        _move(ds, change, os)
        _move(du, change, ou)
        _move(dy, change, oy)
        _move(g, change, og)
    for side in range(2):
        sign = 1.0 - 2.0 * side
        for c in range(shape[0]):
            for k in range(shape[1]):
                moved = change - missed[side, c, k] - sign * g[c, k]
                z, w = push[side, c, k], slack[side, c, k]
                live = scale[c, k] != 0
                dslack[side, c, k] = moved if live else 0.0
                dpush[side, c, k] = (wanted[side, c, k] - z * moved) / w if live else 0.0
    return change


@_part
def _residuals(problem, cost, bound, point, q, r, missed):
    """Forces on states and jerks, and what is missed of the definition of slacks; the peak row."""
    level, scale = problem[0], problem[1]
    s, u, y, slack, push = point
    q[:], r[:] = 0, 0
    force = np.zeros(level.shape)
    _move(force, 1.0, push[0])
    _move(force, -1.0, push[1])
    _pull_rows(problem, force, q, r)
    _pull_conditions(problem, y, q, r)
    _pull_cost(cost, s, u, q, r)
    g, peak = np.zeros(level.shape), 0.0
    _read_rows(problem, s, u, g)
    for c in range(level.shape[0]):
        for k in range(level.shape[1]):
            if scale[c, k] != 0:
                reached = level[c, k] + g[c, k]
                peak = max(peak, abs(reached))
                missed[0, c, k] = reached + slack[0, c, k] - bound
                missed[1, c, k] = slack[1, c, k] - reached - bound
    return peak


@_part
def _balanced_bound(problem, h, solver, blocks, stiff, point, q, r, missed, floor):
    """The bound from below, after small changes of the multipliers by which forces balance.

    Newton's steps leave of a multiplier what rounding makes of a stiff row. Changes ``w G x`` that
    take away the forces that are left solve a problem with the weights ``w``, about the multipliers
    themselves, which is not stiff. One side of a row gives way before the other pushes: none is
    negative.
    """
    s, u, y, slack, push = point
    none, few, most = np.zeros(3), y.shape[0], _forces(problem, slack, push, stiff)[1]
    for c in range(stiff.shape[0]):
        for k in range(stiff.shape[1]):
            live = 1.0 if problem[1][c, k] != 0 else 0.0
            stiff[c, k] = push[0, c, k] + push[1, c, k] + floor * most * live
    weight = _assemble(problem, none, stiff, blocks)
    factors = solver[0]
    if not _factorise(blocks, h, factors[0], factors[1], factors[2]):
        return 0.0
    _spread(problem, factors, h, solver[1], solver[2], solver[3])
    _residuals(problem, none, 0.0, point, q, r, missed)
    right, last = np.zeros(q.shape), np.zeros(r.shape[0])
    _move(right, -1.0, q)
    _move(last, -1.0, r)
    ds, du, dy, g = np.zeros(q.shape), np.zeros(r.shape[0]), np.zeros(few), np.zeros(stiff.shape)
    _solve(problem, solver, h, weight, np.zeros(few), right, last, ds, du, dy)
    _read_rows(problem, ds, du, g)
    for c in range(stiff.shape[0]):
        for k in range(stiff.shape[1]):
            force = stiff[c, k] * g[c, k]
            more, less = (0, 1) if force > 0 else (1, 0)
            taken = min(abs(force), push[less, c, k])
            push[less, c, k] -= taken
            push[more, c, k] += abs(force) - taken
    _move(y, 1.0, dy)
    _residuals(problem, none, 0.0, point, q, r, missed)
    work = _balance(h, q, r, s, u)[1]
    total, _, reached = _forces(problem, slack, push, stiff)
    return (reached - 2 * work) / total


@_kernel
def _iterate(problem, cost, elastic, gap, precision, bound, point):
    """Move a point to the solution; bounds, the peak row and the gap."""
    # Long: the loop of the method, whose parts are above.
    level, scale = problem[0], problem[1]
    s, u, y, slack, push = point
    samples, few = level.shape[1], y.shape[0]
    h = 1.0 / (samples - 1)
    q, r = np.zeros((samples, 3)), np.zeros(samples - 1)
    missed, wanted = np.zeros(slack.shape), np.zeros(slack.shape)
    other = (np.zeros((samples, 3)), np.zeros(samples - 1), np.zeros(few))
    ds, du, dy = np.zeros((samples, 3)), np.zeros(samples - 1), np.zeros(few)
    dslack, dpush = np.zeros(slack.shape), np.zeros(slack.shape)
    step = (ds, du, dy, dslack, dpush, other)
    blocks = np.zeros((samples, 4, 4))
    factors = (np.zeros((samples - 1, 3)), np.zeros(samples - 1), np.zeros((3, 3)))
    spread, moved = np.zeros((few, samples, 3)), np.zeros((few, samples - 1))
    solver = (factors, spread, moved, np.zeros((few, few)))
    stiff = np.zeros(level.shape)
    rows, low, high, mean, peak, first_mean = (
        2 * np.count_nonzero(scale),
        0.0,
        np.inf,
        0.0,
        0.0,
        0.0,
    )
    for number in range(_ITERATIONS):
        peak = _residuals(problem, cost, bound, point, q, r, missed)
        mean = _products(slack, dslack, 0.0, push, dpush, 0.0) / rows
        total, force, reached = _forces(problem, slack, push, stiff)
        unbalanced, work = _balance(h, q, r, s, u)
        if not mean < np.inf or not unbalanced < np.inf:
            break
        if number == 0:
            first_mean = mean
        if elastic:
            off = 0.0
            for i in range(few):
                off = max(off, abs(_read_condition(problem, i, s, u)))
            if off < 1e-11:
                high = min(high, peak)
            # Forces that are left over could move the bound by their work.
            low = max(low, (reached - 2 * work) / total)
            if high < 1 and 1 - high > 0.5 * (1 - low):
                break
            if low > 1 and high - low < precision * low:
                break
            if mean < 1e-13 * first_mean:
                break
        else:
            worst = 0.0
            for side in range(2):
                for c in range(level.shape[0]):
                    for k in range(samples):
                        worst = max(worst, abs(missed[side, c, k]))
            if mean <= 1.5 * gap and worst < 1e-9 and unbalanced < 1e-6 * force:
                break
        weight = _assemble(problem, cost, stiff, blocks)
        if not _factorise(blocks, h, factors[0], factors[1], factors[2]):
            break
        _spread(problem, factors, h, spread, moved, solver[3])
        residuals = (q, r, missed, total - 1.0)
        target, product, change, a, b = 0.0, 0.0, 0.0, 0.0, 0.0
        for turn in range(2):  # a predictor and a corrector
            if turn:
                after = _products(slack, dslack, a, push, dpush, b) / rows
                target, product = max((after / mean) ** 3 * mean, gap), 1.0
            _want(target, product, slack, dslack, push, dpush, wanted)
            change = _newton(problem, solver, h, weight, elastic, point, residuals, wanted, step)
            a, b = _longest(slack, dslack), _longest(push, dpush)
        if not elastic:
            a = b = min(a, b)
        _move(s, a, ds)
        _move(u, a, du)
        _move(slack, a, dslack)
        bound += a * change
        _move(y, b, dy)
        _move(push, b, dpush)
        if elastic and high >= 1 and mean < 1e-5 * first_mean:
            # What holds the motion is not always among the rows that push: others get a little.
            for floor in (1e-15, 1e-9, 1e-4):
                trial = (s, u, y.copy(), slack, push.copy())
                least = _balanced_bound(
                    problem, h, solver, blocks, stiff, trial, q, r, missed, floor
                )
                low = max(low, least)
    return low, high, peak, mean


def least_bound(problem, precision):
    """The least bound that some motion keeps, from below and above, and that motion.

    Arguments:
        problem: ``level`` and ``scale [channels, samples]``, ``form [channels, 4]`` of position,
            velocity, acceleration and jerk in units of the duration, ``place [few]`` and
            ``alpha [few, 4]`` of the conditions.
        precision: relative, at which a bound above 1 is known well enough.
    """
    level, scale = problem[0], problem[1]
    samples, few, rows = level.shape[1], problem[3].shape[0], max(np.count_nonzero(scale), 1)
    s, u, y = np.zeros((samples, 3)), np.zeros(samples - 1), np.zeros(few)
    bound = 1.5 * np.max(np.abs(level)) + 1e-3
    slack = np.ones((2, *level.shape))
    slack[0], slack[1] = bound - level, bound + level
    push = np.full(slack.shape, 0.5 / rows)
    slack[:, scale == 0], push[:, scale == 0] = 1, 0
    point = (s, u, y, slack, push)
    low, high, _, _ = _iterate(problem, np.zeros(3), True, 0.0, precision, bound, point)
    return low, high, s, u


def least_cost(problem, cost, gap, s, u):
    """From a motion that keeps its limits to the least one, with its slacks and multipliers.

    Arguments:
        problem: as in `least_bound`.
        cost: of squared acceleration, of acceleration times jerk, and of squared jerk.
        gap: the product of each slack and multiplier to aim at.
        s: states ``[samples, 3]``, overwritten.
        u: jerks ``[samples - 1]``, overwritten.
    """
    level, scale = problem[0], problem[1]
    g = np.zeros(level.shape)
    _read_rows(problem, s, u, g)
    slack = np.ones((2, *level.shape))
    slack[0], slack[1] = 1 - level - g, 1 + level + g
    bend = s[: len(u), 2]
    mean = float(np.sum(cost[0] * bend**2 + 2 * cost[1] * bend * u + cost[2] * u**2))
    push = (0.1 * (mean + 1) / np.count_nonzero(scale)) / slack
    slack[:, scale == 0], push[:, scale == 0] = 1, 0
    y = np.zeros(problem[3].shape[0])
    point = (s, u, y, slack, push)
    _, _, peak, left = _iterate(problem, cost, False, gap, 0.0, 1.0, point)
    return peak, left, y, slack, push
