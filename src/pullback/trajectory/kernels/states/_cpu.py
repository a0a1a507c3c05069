"""Riccati's recursion on the CPU, compiled by numba: eight joints in a vector.

A recursion waits for each of its samples, so that joints beside one another cost what one does. All
arrays have their joints last, a whole number of vectors of them (`_program.whole`).
"""

import numpy as np

from pullback.internal.kernels._cpu import compile_kernel, compile_part
from pullback.internal.kernels._threads import count_threads, run_slices
from pullback.internal.kernels.vectors._cpu import ROW, load, pointer_at, splat, store

__all__ = ["factorise", "integrate", "sweep"]

_kernel, _part = compile_kernel(nogil=True), compile_part(nogil=True)
# What a sample of a pass costs, in the elements by which threads are counted.
_WORK = 16


def _run(kernel, sizes, h, *arrays, **few):
    # Arrays go by their addresses, in a twentieth of the time and half of the code.
    columns, samples, batch = sizes
    arrays = tuple(map(np.ascontiguousarray, arrays))
    threads = count_threads(batch // ROW, _WORK * batch * columns * samples)
    at = tuple([array.__array_interface__["data"][0] for array in arrays])
    run_slices(kernel, {"at": at, "sizes": sizes, "h": h, **few}, batch // ROW, threads)


def factorise(blocks, h):
    """`_reference.factorise`, compiled."""
    _, samples, batch = blocks.shape
    gains, last = np.empty((4, samples, batch)), np.empty((6, batch))
    _run(_factorise, (1, samples, batch), h, blocks, gains, last)
    return gains, last


def sweep(gains, inverse, q, conditions, h):
    """`_reference.sweep`, compiled."""
    x, met = np.empty(q.shape), np.empty((len(q), *conditions[1].shape))
    given = gains, inverse, q, *conditions
    _run(_sweep, (len(q), *q.shape[2:]), h, *given, x, met, few=len(conditions[1]))
    return x, met


def integrate(x, h):
    """`_reference.integrate`, compiled."""
    found = np.empty(x.shape)
    _run(_integrate, (len(x), *x.shape[2:]), h, x, found)
    return found


@_part
def _memory(address):
    return pointer_at(address, 0.0)


@_part
def _load_four(array, at, row):
    return (
        load(array, at),
        load(array, at + row),
        load(array, at + 2 * row),
        load(array, at + 3 * row),
    )


@_part
def _store_four(array, at, row, first, second, third, fourth):
    store(array, at, first)
    store(array, at + row, second)
    store(array, at + 2 * row, third)
    store(array, at + 3 * row, fourth)


@_kernel
def _factorise(at, sizes, h, first, last):
    # Long: one step of the recursion, written out for blocks of three.
    _, samples, batch = sizes
    blocks, gains, whole = _memory(at[0]), _memory(at[1]), _memory(at[2])
    row, end, one = samples * batch, (samples - 1) * batch, splat(1.0)
    b0, half, step = splat(h * h * h / 6), splat(h * h / 2), splat(h)
    for group in range(first, last):
        b = group * ROW
        m00, m01, m02, _ = _load_four(blocks, end + b, row)
        m11, m12, _, m22 = _load_four(blocks, 4 * row + end + b, row)
        for k in range(samples - 2, -1, -1):
            i = k * batch + b
            q00, q01, q02, q03 = _load_four(blocks, i, row)
            q11, q12, q13, q22 = _load_four(blocks, 4 * row + i, row)
            q23, q33 = load(blocks, 8 * row + i), load(blocks, 9 * row + i)
            mb0 = m00 * b0 + m01 * half + m02 * step
            mb1 = m01 * b0 + m11 * half + m12 * step
            mb2 = m02 * b0 + m12 * half + m22 * step
            root = one / (q33 + b0 * mb0 + half * mb1 + step * mb2)
            k0 = (q03 + mb0) * root
            k1 = (q13 + step * mb0 + mb1) * root
            k2 = (q23 + half * mb0 + step * mb1 + mb2) * root
            _store_four(gains, i, row, k0, k1, k2, root)
            # Joseph's form: the step that the gains close is C = F - b k, and the block C' M C and
            # the own one, closed alike.
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
        _store_four(whole, b, batch, m00, m01, m02, m11)
        store(whole, 4 * batch + b, m12)
        store(whole, 5 * batch + b, m22)


@_part
def _of_inverse(inverse, place, batch, p0, p1, p2):
    total = load(inverse, place) * p0
    total += load(inverse, place + batch) * p1
    return total + load(inverse, place + 2 * batch) * p2


@_kernel
def _sweep(at, sizes, h, few, first, last):
    # Long: backwards and forwards through time, which share what conditions are.
    columns, samples, batch = sizes
    gains, inverse, q, alpha = _memory(at[0]), _memory(at[1]), _memory(at[2]), _memory(at[3])
    place, pulls, x, met = pointer_at(at[4], 0), _memory(at[5]), _memory(at[6]), _memory(at[7])
    row, end, b0 = samples * batch, (samples - 1) * batch, splat(h * h * h / 6)
    half, step = splat(h * h / 2), splat(h)
    for item in range(first * columns, last * columns):
        b, column = item // columns * ROW, item % columns
        c = 4 * column * row
        for i in range(few * ROW):
            one, joint = i // ROW, b + i % ROW
            for d in range(4):
                part = alpha[(4 * one + d) * batch + joint]
                at_state = c + d * row + place[one * batch + joint] * batch + joint
                q[at_state] += part * pulls[(column * few + one) * batch + joint]
        p0, p1, p2, _ = _load_four(q, c + end + b, row)
        for k in range(samples - 2, -1, -1):
            i = k * batch + b
            q0, q1, q2, q3 = _load_four(q, c + i, row)
            k0, k1, k2, root = _load_four(gains, i, row)
            pull = q3 + b0 * p0 + half * p1 + step * p2
            store(x, c + 3 * row + i, pull * root)
            p2 += q2 + half * p0 + step * p1 - k2 * pull
            p1 += q1 + step * p0 - k1 * pull
            p0 += q0 - k0 * pull
        p = _of_inverse(inverse, b, batch, p0, p1, p2)
        v = _of_inverse(inverse, 3 * batch + b, batch, p0, p1, p2)
        a = _of_inverse(inverse, 6 * batch + b, batch, p0, p1, p2)
        for k in range(samples - 1):
            i = k * batch + b
            k0, k1, k2, _ = _load_four(gains, i, row)
            j = load(x, c + 3 * row + i) - k0 * p - k1 * v - k2 * a
            _store_four(x, c + i, row, p, v, a, j)
            p += step * v + half * a + b0 * j
            v += step * a + half * j
            a += step * j
        _store_four(x, c + end + b, row, p, v, a, splat(0.0))
        for i in range(few * ROW):
            one, joint, total = i // ROW, b + i % ROW, 0.0
            for d in range(4):
                at_state = c + d * row + place[one * batch + joint] * batch + joint
                total += alpha[(4 * one + d) * batch + joint] * x[at_state]
            met[(column * few + one) * batch + joint] = total


@_kernel
def _integrate(at, sizes, h, first, last):
    columns, samples, batch = sizes
    x, found, row = _memory(at[0]), _memory(at[1]), samples * batch
    zero, step, half = splat(0.0), splat(h), splat(h * h / 2)
    sixth = splat(h * h * h / 6)
    for item in range(first * columns, last * columns):
        b, c = item // columns * ROW, item % columns * 4 * row
        p, v, a, _ = _load_four(x, c + b, row)
        dp, dv, da = zero, zero, zero
        for k in range(samples):
            i = c + k * batch + b
            s1, s2 = v + dv, a + da
            j = load(x, i + 3 * row) if k < samples - 1 else zero
            _store_four(found, i, row, p + dp, s1, s2, j)
            dp += step * s1 + half * s2 + sixth * j
            dv += step * s2 + half * j
            da += step * j
