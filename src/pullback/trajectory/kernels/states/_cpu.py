"""Riccati's recursion on the CPU, compiled by numba: eight joints in a vector.

A recursion waits for each of its samples, so that joints beside one another cost what one does. All
arrays have their joints last, a whole number of vectors of them (`_program.whole`). What touches
every sample is one of three passes: from the springs to the gains, from the gains to how conditions
spread, and from forces to states.
"""

import numpy as np

from pullback.internal.kernels._cpu import compile_kernel, compile_part
from pullback.internal.kernels._threads import count_threads, run_slices
from pullback.internal.kernels.vectors._cpu import (
    ROW,
    load,
    pointer_at,
    splat,
    store,
)

__all__ = ["factorise", "integrate", "solve", "spread"]

_kernel, _part = compile_kernel(nogil=True), compile_part(nogil=True)
# What a sample of a pass costs, in the elements by which threads are counted.
_WORK = 16


def _run(kernel, sizes, columns, *arrays, **numbers):
    # Arrays go by their addresses, in a twentieth of the time and half of the code.
    batch, samples = sizes[-1], sizes[-2]
    arrays = tuple(map(np.ascontiguousarray, arrays))
    threads = count_threads(batch // ROW, _WORK * batch * columns * samples)
    at = tuple([array.__array_interface__["data"][0] for array in arrays])
    arguments = {"at": at, "columns": columns, "sizes": sizes, **numbers}
    run_slices(kernel, arguments, batch // ROW, threads)


def _own(sizes):
    # What a group of joints is worked out in.
    return np.empty((sizes[-1] // ROW, 4, sizes[-2], ROW))


def factorise(springs, form, cost, conditions, weight, *, h):
    """`_reference.factorise`, compiled."""
    (alpha, place), (_, samples, batch) = conditions, springs.shape
    gains, last, met = np.empty((4, samples, batch)), np.empty((6, batch)), np.zeros(samples)
    met[place] = 1
    given = springs, form, cost, alpha, place, weight, met, np.empty((batch // ROW, 10, ROW))
    _run(_factorise, springs.shape, 1, *given, gains, last, h=h, few=len(alpha))
    return gains, last


def spread(gains, inverse, alpha, place, h):
    """`_reference.spread`, compiled."""
    (few, _, batch), samples = alpha.shape, gains.shape[1]
    jerks, starts = np.empty((few, samples, batch)), np.empty((few, 3, batch))
    met, sizes = np.empty((few, few, batch)), (0, samples, batch)
    found = jerks, starts, met, np.zeros_like(_own(sizes)), _own(sizes)
    _run(_spread, sizes, few, gains, inverse, alpha, place, *found, h=h)
    return jerks, starts, met


def solve(factor, conditions, rows, right, h):
    """`_reference.solve`, compiled."""
    q, force, _, gap = right
    x, y, reached = np.empty(q.shape), np.empty(gap.shape), np.empty(force.shape)
    sizes = rows[0].shape
    given = *factor, *conditions, *rows, *right
    found = x, y, reached, _own(sizes)
    _run(_solve, sizes, len(q), *given, *found, h=h, few=gap.shape[1])
    return x, y, reached


def integrate(x, rows, h):
    """`_reference.integrate`, compiled."""
    found, reached = np.empty(x.shape), np.empty((len(x), *rows[0].shape))
    sizes = rows[0].shape
    _run(_integrate, sizes, len(x), x, *rows, found, reached, _own(sizes), h=h)
    return found, reached


@_part
def _memory(address):
    return pointer_at(address, 0.0)


@_part
def _square(conditions, squares, k, b, batch):
    # What conditions add to the block of sample k.
    alpha, place, weight, few = conditions
    for entry in range(10 * ROW):
        squares[entry] = 0.0
    for i in range(few):
        for lane in range(ROW):
            if place[i * batch + b + lane] == k:
                entry, at = lane, 4 * i * batch + b + lane
                for d in range(4):
                    for e in range(d, 4):
                        both = alpha[at + d * batch] * alpha[at + e * batch]
                        squares[entry] += weight[b + lane] * both
                        entry += ROW


@_part
def _block(springs, form, cost, held, sizes, k, b):
    # The upper triangle of the matrix at sample k, row by row.
    kinds, samples, batch = sizes
    row, at, zero = samples * batch, k * batch + b, splat(0.0)
    q00, q01, q02, q03, q11, q12, q13 = zero, zero, zero, zero, zero, zero, zero
    q22, q23, q33 = zero, zero, zero
    if k < samples - 1:
        q22, q23 = load(cost, b), load(cost, batch + b)
        q33 = load(cost, 2 * batch + b)
    for kind in range(kinds):
        spring = load(springs, kind * row + at)
        f0, f1 = splat(form[4 * kind]), splat(form[4 * kind + 1])
        f2, f3 = splat(form[4 * kind + 2]), splat(form[4 * kind + 3])
        s0, s1, s2 = f0 * spring, f1 * spring, f2 * spring
        q00, q01, q02, q03 = q00 + s0 * f0, q01 + s0 * f1, q02 + s0 * f2, q03 + s0 * f3
        q11, q12, q13 = q11 + s1 * f1, q12 + s1 * f2, q13 + s1 * f3
        q22, q23, q33 = q22 + s2 * f2, q23 + s2 * f3, q33 + f3 * spring * f3
    conditions, met, squares = held
    if met[k] > 0:
        _square(conditions, squares, k, b, batch)
        q00, q01 = q00 + load(squares, 0 * b), q01 + load(squares, ROW)
        q02, q03 = q02 + load(squares, 2 * ROW), q03 + load(squares, 3 * ROW)
        q11, q12 = q11 + load(squares, 4 * ROW), q12 + load(squares, 5 * ROW)
        q13, q22 = q13 + load(squares, 6 * ROW), q22 + load(squares, 7 * ROW)
        q23, q33 = q23 + load(squares, 8 * ROW), q33 + load(squares, 9 * ROW)
    return q00, q01, q02, q03, q11, q12, q13, q22, q23, q33


@_kernel
def _factorise(at, columns, sizes, h, few, first, last):
    # Long: one step of the recursion, written out for blocks of three.
    _, samples, batch = sizes
    conditions = (_memory(at[3]), pointer_at(at[4], 0), _memory(at[5]), few)
    gain, whole, end = _memory(at[8]), _memory(at[9]), samples - 1
    row, one = samples * batch, splat(1.0)
    b0, half, step = splat(h * h * h / 6), splat(h * h / 2), splat(h)
    for group in range(first, last):
        b = group * ROW
        held = (conditions, _memory(at[6]), _memory(at[7] + 8 * 10 * ROW * group))
        given = (_memory(at[0]), _memory(at[1]), _memory(at[2]), held)
        m00, m01, m02, _, m11, m12, _, m22, _, _ = _block(*given, sizes, end, b)
        for k in range(end - 1, -1, -1):
            q00, q01, q02, q03, q11, q12, q13, q22, q23, q33 = _block(*given, sizes, k, b)
            mb0 = m00 * b0 + m01 * half + m02 * step
            mb1 = m01 * b0 + m11 * half + m12 * step
            mb2 = m02 * b0 + m12 * half + m22 * step
            root = one / (q33 + b0 * mb0 + half * mb1 + step * mb2)
            k0 = (q03 + mb0) * root
            k1 = (q13 + step * mb0 + mb1) * root
            k2 = (q23 + half * mb0 + step * mb1 + mb2) * root
            _store_states(gain, k * batch + b, row, k0, k1, k2, root)
            # Joseph's form, a sum of squares, so that rounding leaves it definite: the step that
            # the gains close is C = F - b k, and the block C' M C and the own one, closed alike.
            c00, c01, c02 = one - b0 * k0, step - b0 * k1, half - b0 * k2
            d0, d1, d2 = half * k0, one - half * k1, step - half * k2
            e0, e1, e2 = step * k0, step * k1, one - step * k2
            w00 = m00 * c00 - m01 * d0 - m02 * e0
            w10 = m01 * c00 - m11 * d0 - m12 * e0
            w20 = m02 * c00 - m12 * d0 - m22 * e0
            w01 = m00 * c01 + m01 * d1 - m02 * e1
            w11 = m01 * c01 + m11 * d1 - m12 * e1
            w21 = m02 * c01 + m12 * d1 - m22 * e1
            w02 = m00 * c02 + m01 * d2 + m02 * e2
            w12 = m01 * c02 + m11 * d2 + m12 * e2
            w22 = m02 * c02 + m12 * d2 + m22 * e2
            r0, r1, r2 = k0 * q33 - q03, k1 * q33 - q13, k2 * q33 - q23
            m00 = q00 - q03 * k0 + r0 * k0 + c00 * w00 - d0 * w10 - e0 * w20
            m01 = q01 - q03 * k1 + r1 * k0 + c00 * w01 - d0 * w11 - e0 * w21
            m02 = q02 - q03 * k2 + r2 * k0 + c00 * w02 - d0 * w12 - e0 * w22
            m11 = q11 - q13 * k1 + r1 * k1 + c01 * w01 + d1 * w11 - e1 * w21
            m12 = q12 - q13 * k2 + r2 * k1 + c01 * w02 + d1 * w12 - e1 * w22
            m22 = q22 - q23 * k2 + r2 * k2 + c02 * w02 + d2 * w12 + e2 * w22
        _store_states(whole, b, batch, m00, m01, m02, m11)
        store(whole, 4 * batch + b, m12)
        store(whole, 5 * batch + b, m22)


@_part
def _pull(q, q_place, force, sizes, k, b):
    # The forces on the states and on the jerk of sample k: own ones, and those of rows.
    kinds, samples, batch = sizes
    begin, row, step = q_place
    at = begin + k * step
    q0, q1 = load(q, at), load(q, at + row)
    q2, q3 = load(q, at + 2 * row), load(q, at + 3 * row)
    pushes, scale, form = force
    for kind in range(kinds):
        place = (kind * samples + k) * batch + b
        push = load(pushes, place) * load(scale, place)
        q0 += splat(form[4 * kind]) * push
        q1 += splat(form[4 * kind + 1]) * push
        q2 += splat(form[4 * kind + 2]) * push
        q3 += splat(form[4 * kind + 3]) * push
    return q0, q1, q2, q3


@_part
def _sweep(q, q_place, force, gains, inverse, x, h, sizes, b):
    # The states and jerks that forces ask for, of one group of joints, into x [4, samples, ROW].
    _, samples, batch = sizes
    end, row, deep = samples - 1, samples * batch, samples * ROW
    b0, half, step = splat(h * h * h / 6), splat(h * h / 2), splat(h)
    p0, p1, p2, _ = _pull(q, q_place, force, sizes, end, b)
    for k in range(end - 1, -1, -1):
        q0, q1, q2, q3 = _pull(q, q_place, force, sizes, k, b)
        at = k * batch + b
        pull = q3 + b0 * p0 + half * p1 + step * p2
        store(x, 3 * deep + k * ROW, pull * load(gains, 3 * row + at))
        p2 += q2 + half * p0 + step * p1 - load(gains, 2 * row + at) * pull
        p1 += q1 + step * p0 - load(gains, row + at) * pull
        p0 += q0 - load(gains, at) * pull
    p = _of_inverse(inverse, b, batch, p0, p1, p2)
    v = _of_inverse(inverse, 3 * batch + b, batch, p0, p1, p2)
    a = _of_inverse(inverse, 6 * batch + b, batch, p0, p1, p2)
    for k in range(end):
        at = k * batch + b
        j = load(x, 3 * deep + k * ROW) - load(gains, at) * p
        j = j - load(gains, row + at) * v - load(gains, 2 * row + at) * a
        _store_states(x, k * ROW, deep, p, v, a, j)
        p += step * v + half * a + b0 * j
        v += step * a + half * j
        a += step * j
    _store_states(x, end * ROW, deep, p, v, a, splat(0.0))


@_part
def _of_inverse(inverse, place, batch, p0, p1, p2):
    total = load(inverse, place) * p0
    total += load(inverse, place + batch) * p1
    return total + load(inverse, place + 2 * batch) * p2


@_part
def _store_states(x, at, row, p, v, a, j):
    store(x, at, p)
    store(x, at + row, v)
    store(x, at + 2 * row, a)
    store(x, at + 3 * row, j)


@_part
def _meet(alpha, place, x, i, lane, joint, deep, batch):
    # What a condition is of a state and a jerk.
    k, total = place[i * batch + joint], 0.0
    for d in range(4):
        total += alpha[(4 * i + d) * batch + joint] * x[d * deep + k * ROW + lane]
    return total


@_kernel
def _spread(at, columns, sizes, h, first, last):
    _, samples, batch = sizes
    gains, inverse, alpha = _memory(at[0]), _memory(at[1]), _memory(at[2])
    place, jerks, starts = pointer_at(at[3], 0), _memory(at[4]), _memory(at[5])
    met, nothing, deep = _memory(at[6]), (gains, gains, gains), samples * ROW
    for group in range(first, last):
        b, own = group * ROW, 8 * 4 * group * deep
        pull, x = _memory(at[7] + own), _memory(at[8] + own)
        for i in range(columns):
            for lane in range(ROW):
                k = place[i * batch + b + lane]
                for d in range(4):
                    pull[d * deep + k * ROW + lane] = alpha[(4 * i + d) * batch + b + lane]
            _sweep(pull, (0 * b, deep, b - b + ROW), nothing, gains, inverse, x, h, sizes, b)
            for lane in range(ROW):
                k = place[i * batch + b + lane]
                for d in range(4):
                    pull[d * deep + k * ROW + lane] = 0.0
                for o in range(columns):
                    value = _meet(alpha, place, x, o, lane, b + lane, deep, batch)
                    met[(o * columns + i) * batch + b + lane] = value
            for k in range(samples):
                store(jerks, (i * samples + k) * batch + b, load(x, 3 * deep + k * ROW))
            for d in range(3):
                store(starts, (3 * i + d) * batch + b, load(x, d * deep))


@_part
def _finish(x, spreads, duals, rows, out, reached, h, sizes, b):
    # States of the first one and of the jerks, less what conditions take, and the rows of them:
    # beside large states their differences would keep less.
    kinds, samples, batch = sizes
    (jerks, starts), (y, few), (scale, form) = spreads, duals, rows
    row, deep = samples * batch, samples * ROW
    zero, step, half = splat(0.0), splat(h), splat(h * h / 2)
    sixth = splat(h * h * h / 6)
    p, v, a = load(x, 0), load(x, deep), load(x, 2 * deep)
    for i in range(few):
        own = load(y, i * batch + b)
        p = p - own * load(starts, 3 * i * batch + b)
        v = v - own * load(starts, (3 * i + 1) * batch + b)
        a = a - own * load(starts, (3 * i + 2) * batch + b)
    dp, dv, da = zero, zero, zero
    for k in range(samples):
        at, j = k * batch + b, load(x, 3 * deep + k * ROW)
        for i in range(few if k < samples - 1 else 0):
            j = j - load(y, i * batch + b) * load(jerks, i * row + at)
        s0, s1, s2 = p + dp, v + dv, a + da
        _store_states(out, at, row, s0, s1, s2, j)
        for kind in range(kinds):
            f0, f1 = splat(form[4 * kind]), splat(form[4 * kind + 1])
            f2, f3 = splat(form[4 * kind + 2]), splat(form[4 * kind + 3])
            value = (f0 * s0 + f1 * s1 + f2 * s2 + f3 * j) * load(scale, kind * row + at)
            store(reached, kind * row + at, value)
        dp += step * s1 + half * s2 + sixth * j
        dv += step * s2 + half * j
        da += step * j


@_kernel
def _solve(at, columns, sizes, h, few, first, last):
    kinds, samples, batch = sizes
    gains, inverse, jerks = _memory(at[0]), _memory(at[1]), _memory(at[2])
    starts, schur, alpha = _memory(at[3]), _memory(at[4]), _memory(at[5])
    place, scale, form = pointer_at(at[6], 0), _memory(at[7]), _memory(at[8])
    row, deep = samples * batch, samples * ROW
    for group in range(first, last):
        b, own = group * ROW, _memory(at[16] + 8 * 4 * group * deep)
        for c in range(columns):
            q, force = _memory(at[9] + 8 * 4 * c * row), _memory(at[10] + 8 * kinds * c * row)
            beside = 8 * few * c * batch
            pull, gap, y = (
                _memory(at[11] + beside),
                _memory(at[12] + beside),
                _memory(at[14] + beside),
            )
            for i in range(few):
                for joint in range(b, b + ROW):
                    k, own_pull = place[i * batch + joint], pull[i * batch + joint]
                    for d in range(4):
                        more = alpha[(4 * i + d) * batch + joint] * own_pull
                        q[d * row + k * batch + joint] += more
            push = (force, scale, form)
            _sweep(q, (b, row, batch), push, gains, inverse, own, h, sizes, b)
            for joint in range(b, b + ROW):
                for i in range(few):
                    y[i * batch + joint] = 0.0
                for i in range(few):
                    miss = _meet(alpha, place, own, i, joint - b, joint, deep, batch)
                    miss -= gap[i * batch + joint]
                    for o in range(few):
                        y[o * batch + joint] += schur[(o * few + i) * batch + joint] * miss
            x, reached = _memory(at[13] + 8 * 4 * c * row), _memory(at[15] + 8 * kinds * c * row)
            _finish(own, (jerks, starts), (y, few), (scale, form), x, reached, h, sizes, b)


@_kernel
def _integrate(at, columns, sizes, h, first, last):
    kinds, samples, batch = sizes
    scale, form, row, deep = _memory(at[1]), _memory(at[2]), samples * batch, samples * ROW
    for group in range(first, last):
        b, own = group * ROW, _memory(at[5] + 8 * 4 * group * deep)
        for c in range(columns):
            x = _memory(at[0] + 8 * 4 * c * row)
            for d in range(3):
                store(own, d * deep, load(x, d * row + b))
            for k in range(samples):
                store(own, 3 * deep + k * ROW, load(x, 3 * row + k * batch + b))
            found, reached = _memory(at[3] + 8 * 4 * c * row), _memory(at[4] + 8 * kinds * c * row)
            _finish(own, (own, own), (own, 0 * b), (scale, form), found, reached, h, sizes, b)
