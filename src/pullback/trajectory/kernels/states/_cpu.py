"""Riccati's recursion on the CPU, compiled by numba: eight joints in a vector.

A recursion waits for each of its samples, so that joints beside one another cost what one does. All
arrays have their joints last. What touches every sample is one of three passes: from the springs to
the gains, from the gains to how conditions spread, and from forces to states.
"""

import numpy as np

from pullback.internal.kernels._cpu import compile_kernel, compile_part
from pullback.internal.kernels._threads import count_threads, run_slices
from pullback.internal.kernels.vectors._cpu import (
    ROW,
    load_row,
    pointer_to,
    splat_row,
    store_first,
)

__all__ = ["factorise", "integrate", "solve", "spread"]

_kernel, _part = compile_kernel(nogil=True), compile_part(nogil=True)
# What a sample of a pass costs, in the elements by which threads are counted.
_WORK = 16


def _run(kernel, batch, samples, columns=1, **arguments):
    groups = -(-batch // ROW)
    threads = count_threads(groups, _WORK * batch * columns * samples)
    run_slices(kernel, arguments, groups, threads)


def factorise(springs, form, cost, squares, weight, h):
    """`_reference.factorise`, compiled."""
    _, samples, batch = springs.shape
    gains, whole = np.empty((4, samples, batch)), np.empty((6, batch))
    _run(
        _factorise, batch, samples, springs=springs, form=form, cost=cost, squares=squares,
        weight=weight, h=h, met=squares.any((0, 2)), gains=gains, whole=whole,
    )  # fmt: skip
    return gains, whole


def spread(gains, inverse, alpha, place, h):
    """`_reference.spread`, compiled."""
    few, _, batch = alpha.shape
    samples = gains.shape[1]
    jerks, starts = np.empty((few, samples, batch)), np.empty((few, 3, batch))
    met = np.empty((few, few, batch))
    _run(
        _spread, batch, samples, few,
        gains=gains, inverse=inverse, alpha=alpha, place=place, h=h, jerks=jerks, starts=starts,
        met=met,
    )  # fmt: skip
    return jerks, starts, met


def solve(factor, conditions, rows, h, q, force, pull, gap):
    """`_reference.solve`, compiled."""
    columns, _, samples, batch = q.shape
    x, y, reached = np.empty(q.shape), np.empty(gap.shape), np.empty(force.shape)
    _run(
        _solve, batch, samples, columns, factor=factor, conditions=conditions, rows=rows, h=h, q=q,
        force=force, pull=pull, gap=gap, x=x, y=y, reached=reached,
    )  # fmt: skip
    return x, y, reached


def integrate(x, rows, h):
    """`_reference.integrate`, compiled."""
    columns, _, samples, batch = x.shape
    found, reached = np.empty(x.shape), np.empty((columns, *rows[0].shape))
    _run(_integrate, batch, samples, columns, x=x, rows=rows, h=h, found=found, reached=reached)
    return found, reached


@_part
def _block(springs, form, cost, held, sizes, k, b, count):
    # The upper triangle of the matrix at sample k, row by row.
    kinds, samples, batch = sizes
    row, at, zero = samples * batch, k * batch + b, splat_row(0.0)
    q00, q01, q02, q03, q11, q12, q13 = zero, zero, zero, zero, zero, zero, zero
    q22, q23, q33 = zero, zero, zero
    if k < samples - 1:
        q22, q23 = load_row(cost, b, count), load_row(cost, batch + b, count)
        q33 = load_row(cost, 2 * batch + b, count)
    for kind in range(kinds):
        spring = load_row(springs, kind * row + at, count)
        f0, f1 = splat_row(form[4 * kind]), splat_row(form[4 * kind + 1])
        f2, f3 = splat_row(form[4 * kind + 2]), splat_row(form[4 * kind + 3])
        s0, s1, s2 = f0 * spring, f1 * spring, f2 * spring
        q00, q01, q02, q03 = q00 + s0 * f0, q01 + s0 * f1, q02 + s0 * f2, q03 + s0 * f3
        q11, q12, q13 = q11 + s1 * f1, q12 + s1 * f2, q13 + s1 * f3
        q22, q23, q33 = q22 + s2 * f2, q23 + s2 * f3, q33 + f3 * spring * f3
    squares, weight, met = held
    if met[k]:
        w = load_row(weight, b, count)
        q00 += w * load_row(squares, at, count)
        q01 += w * load_row(squares, row + at, count)
        q02 += w * load_row(squares, 2 * row + at, count)
        q03 += w * load_row(squares, 3 * row + at, count)
        q11 += w * load_row(squares, 4 * row + at, count)
        q12 += w * load_row(squares, 5 * row + at, count)
        q13 += w * load_row(squares, 6 * row + at, count)
        q22 += w * load_row(squares, 7 * row + at, count)
        q23 += w * load_row(squares, 8 * row + at, count)
        q33 += w * load_row(squares, 9 * row + at, count)
    return q00, q01, q02, q03, q11, q12, q13, q22, q23, q33


@_kernel
def _factorise(springs, form, cost, squares, weight, h, met, gains, whole, first, last):
    # Long: one step of the recursion, written out for blocks of three.
    sizes = springs.shape
    _, samples, batch = sizes
    held = (pointer_to(squares), pointer_to(weight), met)
    given = (pointer_to(springs), pointer_to(form), pointer_to(cost), held)
    gain, end = pointer_to(gains), samples - 1
    row, one = samples * batch, splat_row(1.0)
    b0, half, step = splat_row(h * h * h / 6), splat_row(h * h / 2), splat_row(h)
    for group in range(first, last):
        b = group * ROW
        count = min(ROW, batch - b)
        m00, m01, m02, _, m11, m12, _, m22, _, _ = _block(*given, sizes, end, b, count)
        for k in range(end - 1, -1, -1):
            q00, q01, q02, q03, q11, q12, q13, q22, q23, q33 = _block(*given, sizes, k, b, count)
            mb0 = m00 * b0 + m01 * half + m02 * step
            mb1 = m01 * b0 + m11 * half + m12 * step
            mb2 = m02 * b0 + m12 * half + m22 * step
            root = one / (q33 + b0 * mb0 + half * mb1 + step * mb2)
            k0 = (q03 + mb0) * root
            k1 = (q13 + step * mb0 + mb1) * root
            k2 = (q23 + half * mb0 + step * mb1 + mb2) * root
            at = k * batch + b
            store_first(gain, at, k0, count)
            store_first(gain, row + at, k1, count)
            store_first(gain, 2 * row + at, k2, count)
            store_first(gain, 3 * row + at, root, count)
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
        found = (m00, m01, m02, m11, m12, m22)
        for part in range(6):
            store_first(pointer_to(whole), part * batch + b, found[part], count)


@_part
def _pull(q, q_place, force, sizes, k, b, count):
    # The forces on the states and on the jerk of sample k: own ones, and those of rows.
    kinds, samples, batch = sizes
    begin, row, step = q_place
    at = begin + k * step
    q0, q1 = load_row(q, at, count), load_row(q, at + row, count)
    q2, q3 = load_row(q, at + 2 * row, count), load_row(q, at + 3 * row, count)
    pushes, scale, form = force
    for kind in range(kinds):
        place = (kind * samples + k) * batch + b
        push = load_row(pushes, place, count) * load_row(scale, place, count)
        q0 += splat_row(form[4 * kind]) * push
        q1 += splat_row(form[4 * kind + 1]) * push
        q2 += splat_row(form[4 * kind + 2]) * push
        q3 += splat_row(form[4 * kind + 3]) * push
    return q0, q1, q2, q3


@_part
def _sweep(q, q_place, force, gains, inverse, x, h, sizes, b, count):
    # The states and jerks that forces ask for, of one group of joints, into x [4, samples, ROW].
    _, samples, batch = sizes
    end, row, deep = samples - 1, samples * batch, samples * ROW
    b0, half, step = splat_row(h * h * h / 6), splat_row(h * h / 2), splat_row(h)
    p0, p1, p2, _ = _pull(q, q_place, force, sizes, end, b, count)
    for k in range(end - 1, -1, -1):
        q0, q1, q2, q3 = _pull(q, q_place, force, sizes, k, b, count)
        at = k * batch + b
        pull = q3 + b0 * p0 + half * p1 + step * p2
        store_first(x, 3 * deep + k * ROW, pull * load_row(gains, 3 * row + at, count), ROW)
        p2 += q2 + half * p0 + step * p1 - load_row(gains, 2 * row + at, count) * pull
        p1 += q1 + step * p0 - load_row(gains, row + at, count) * pull
        p0 += q0 - load_row(gains, at, count) * pull
    p = _of_inverse(inverse, 0, batch, b, count, p0, p1, p2)
    v = _of_inverse(inverse, 3, batch, b, count, p0, p1, p2)
    a = _of_inverse(inverse, 6, batch, b, count, p0, p1, p2)
    for k in range(end):
        at = k * batch + b
        j = load_row(x, 3 * deep + k * ROW, ROW) - load_row(gains, at, count) * p
        j = j - load_row(gains, row + at, count) * v - load_row(gains, 2 * row + at, count) * a
        _store_states(x, k * ROW, deep, p, v, a, j, ROW)
        p += step * v + half * a + b0 * j
        v += step * a + half * j
        a += step * j
    _store_states(x, end * ROW, deep, p, v, a, splat_row(0.0), ROW)


@_part
def _of_inverse(inverse, entry, batch, b, count, p0, p1, p2):
    place = entry * batch + b
    total = load_row(inverse, place, count) * p0
    total += load_row(inverse, place + batch, count) * p1
    return total + load_row(inverse, place + 2 * batch, count) * p2


@_part
def _store_states(x, at, row, p, v, a, j, count):
    store_first(x, at, p, count)
    store_first(x, at + row, v, count)
    store_first(x, at + 2 * row, a, count)
    store_first(x, at + 3 * row, j, count)


@_part
def _meet(alpha, place, x, i, lane, joint):
    # What a condition is of a state and a jerk.
    at, total = place[i, joint], 0.0
    for d in range(4):
        total += alpha[i, d, joint] * x[d, at, lane]
    return total


@_kernel
def _spread(gains, inverse, alpha, place, h, jerks, starts, met, first, last):
    few, _, batch = alpha.shape
    samples = gains.shape[1]
    sizes = (0, samples, batch)
    pull, x = np.zeros((4, samples, ROW)), np.empty((4, samples, ROW))
    nothing = (pointer_to(x), pointer_to(x), pointer_to(x))
    for group in range(first, last):
        b = group * ROW
        count = min(ROW, batch - b)
        for i in range(few):
            for lane in range(count):
                pull[:, place[i, b + lane], lane] = alpha[i, :, b + lane]
            _sweep(
                pointer_to(pull), (0, samples * ROW, ROW), nothing, pointer_to(gains),
                pointer_to(inverse), pointer_to(x), h, sizes, b, count,
            )  # fmt: skip
            for lane in range(count):
                pull[:, place[i, b + lane], lane] = 0
                jerks[i, :, b + lane] = x[3, :, lane]
                starts[i, :, b + lane] = x[:3, 0, lane]
                for other in range(few):
                    met[other, i, b + lane] = _meet(alpha, place, x, other, lane, b + lane)


@_part
def _finish(x, spreads, duals, rows, out, reached, h, sizes, b, count):
    # States of the first one and of the jerks, less what conditions take, and the rows of them:
    # beside large states their differences would keep less.
    kinds, samples, batch = sizes
    (jerks, starts), (y, few), (scale, form) = spreads, duals, rows
    row, deep = samples * batch, samples * ROW
    zero, step, half = splat_row(0.0), splat_row(h), splat_row(h * h / 2)
    sixth = splat_row(h * h * h / 6)
    p, v, a = load_row(x, 0, ROW), load_row(x, deep, ROW), load_row(x, 2 * deep, ROW)
    for i in range(few):
        own = load_row(y, i * batch + b, count)
        p = p - own * load_row(starts, 3 * i * batch + b, count)
        v = v - own * load_row(starts, (3 * i + 1) * batch + b, count)
        a = a - own * load_row(starts, (3 * i + 2) * batch + b, count)
    dp, dv, da = zero, zero, zero
    for k in range(samples):
        at, j = k * batch + b, load_row(x, 3 * deep + k * ROW, ROW)
        for i in range(few if k < samples - 1 else 0):
            j = j - load_row(y, i * batch + b, count) * load_row(jerks, i * row + at, count)
        s0, s1, s2 = p + dp, v + dv, a + da
        _store_states(out, at, row, s0, s1, s2, j, count)
        for kind in range(kinds):
            f0, f1 = splat_row(form[4 * kind]), splat_row(form[4 * kind + 1])
            f2, f3 = splat_row(form[4 * kind + 2]), splat_row(form[4 * kind + 3])
            value = (f0 * s0 + f1 * s1 + f2 * s2 + f3 * j) * load_row(scale, kind * row + at, count)
            store_first(reached, kind * row + at, value, count)
        dp += step * s1 + half * s2 + sixth * j
        dv += step * s2 + half * j
        da += step * j


@_kernel
def _solve(factor, conditions, rows, h, q, force, pull, gap, x, y, reached, first, last):
    gains, inverse, jerks, starts, schur = factor
    (alpha, place), (scale, form) = conditions, rows
    columns, _, samples, batch = q.shape
    few, sizes = len(alpha), (len(scale), samples, batch)
    own = np.empty((4, samples, ROW))
    for group in range(first, last):
        b = group * ROW
        count = min(ROW, batch - b)
        for c in range(columns):
            for i in range(few):
                for joint in range(b, b + count):
                    for d in range(4):
                        q[c, d, place[i, joint], joint] += alpha[i, d, joint] * pull[c, i, joint]
            push = (pointer_to(force[c]), pointer_to(scale), pointer_to(form))
            _sweep(
                pointer_to(q[c]), (b, samples * batch, batch), push, pointer_to(gains),
                pointer_to(inverse), pointer_to(own), h, sizes, b, count,
            )  # fmt: skip
            for joint in range(b, b + count):
                y[c, :, joint] = 0
                for i in range(few):
                    miss = _meet(alpha, place, own, i, joint - b, joint) - gap[c, i, joint]
                    for other in range(few):
                        y[c, other, joint] += schur[other, i, joint] * miss
            _finish(
                pointer_to(own), (pointer_to(jerks), pointer_to(starts)), (pointer_to(y[c]), few),
                (pointer_to(scale), pointer_to(form)), pointer_to(x[c]), pointer_to(reached[c]),
                h, sizes, b, count,
            )  # fmt: skip


@_kernel
def _integrate(x, rows, h, found, reached, first, last):
    (scale, form), (columns, _, samples, batch) = rows, x.shape
    own, sizes = np.empty((4, samples, ROW)), (len(scale), samples, batch)
    nothing = pointer_to(own)
    for group in range(first, last):
        b = group * ROW
        count = min(ROW, batch - b)
        for c in range(columns):
            own[:3, 0, :count], own[3, :, :count] = x[c, :3, 0, b : b + count], x[c, 3, :, b : b + count]
            _finish(
                nothing, (nothing, nothing), (nothing, 0), (pointer_to(scale), pointer_to(form)),
                pointer_to(found[c]), pointer_to(reached[c]), h, sizes, b, count,
            )  # fmt: skip
