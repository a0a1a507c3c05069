"""Riccati's recursion on the CPU, compiled by numba.

Only the two loops over samples, each of which waits for the one before: they compile in two
seconds. All else is arithmetic on whole arrays (`_program`).
"""

import numpy as np

from pullback.internal.kernels._cpu import compile_kernel
from pullback.internal.kernels._threads import count_threads, run_slices

__all__ = ["factorise", "sweep"]

_kernel = compile_kernel(nogil=True)
# What a sample of a sweep costs, in the elements by which threads are counted.
_WORK = 16


def factorise(blocks: np.ndarray, h: float) -> tuple[np.ndarray, np.ndarray]:
    """`_reference.factorise`, compiled."""
    batch, _, samples = blocks.shape
    gains, last = np.empty((batch, 4, samples)), np.empty((batch, 6))
    arguments = {"blocks": np.ascontiguousarray(blocks), "h": h, "gains": gains, "whole": last}
    run_slices(_factorise, arguments, batch, count_threads(batch, _WORK * batch * samples))
    return gains, last


def sweep(gains: np.ndarray, inverse: np.ndarray, h: float, q: np.ndarray) -> np.ndarray:
    """`_reference.sweep`, compiled."""
    batch, columns, _, samples = q.shape
    x = np.empty(q.shape)
    arguments = {"gains": gains, "inverse": inverse, "h": h, "q": np.ascontiguousarray(q), "x": x}
    threads = count_threads(batch, _WORK * batch * columns * samples)
    run_slices(_sweep, arguments, batch, threads)
    return x


@_kernel
def _factorise(blocks, h, gains, whole, first, last):
    # Long: one step of the recursion, written out for blocks of three.
    for item in range(first, last):
        end = blocks.shape[2] - 1
        b0, half = h * h * h / 6, h * h / 2
        m00, m01, m02 = blocks[item, 0, end], blocks[item, 1, end], blocks[item, 2, end]
        m11, m12, m22 = blocks[item, 4, end], blocks[item, 5, end], blocks[item, 7, end]
        for k in range(end - 1, -1, -1):
            q03, q13, q23 = blocks[item, 3, k], blocks[item, 6, k], blocks[item, 8, k]
            q33 = blocks[item, 9, k]
            mb0 = m00 * b0 + m01 * half + m02 * h
            mb1 = m01 * b0 + m11 * half + m12 * h
            mb2 = m02 * b0 + m12 * half + m22 * h
            pivot = q33 + b0 * mb0 + half * mb1 + h * mb2
            root = 1 / pivot if pivot > 0 else np.nan
            k0 = (q03 + mb0) * root
            k1 = (q13 + h * mb0 + mb1) * root
            k2 = (q23 + half * mb0 + h * mb1 + mb2) * root
            gains[item, 0, k], gains[item, 1, k], gains[item, 2, k] = k0, k1, k2
            gains[item, 3, k] = root
            # Joseph's form, a sum of squares, so that rounding leaves it definite: the step that
            # the gains close is C = F - b k, and the block C' M C and the own one, closed alike.
            c00, c01, c02 = 1 - b0 * k0, h - b0 * k1, half - b0 * k2
            c10, c11, c12 = -half * k0, 1 - half * k1, h - half * k2
            c20, c21, c22 = -h * k0, -h * k1, 1 - h * k2
            w00, w10, w20 = (
                m00 * c00 + m01 * c10 + m02 * c20,
                m01 * c00 + m11 * c10 + m12 * c20,
                m02 * c00 + m12 * c10 + m22 * c20,
            )
            w01, w11, w21 = (
                m00 * c01 + m01 * c11 + m02 * c21,
                m01 * c01 + m11 * c11 + m12 * c21,
                m02 * c01 + m12 * c11 + m22 * c21,
            )
            w02, w12, w22 = (
                m00 * c02 + m01 * c12 + m02 * c22,
                m01 * c02 + m11 * c12 + m12 * c22,
                m02 * c02 + m12 * c12 + m22 * c22,
            )
            r0, r1, r2 = k0 * q33 - q03, k1 * q33 - q13, k2 * q33 - q23
            m00 = blocks[item, 0, k] - q03 * k0 + r0 * k0 + c00 * w00 + c10 * w10 + c20 * w20
            m01 = blocks[item, 1, k] - q03 * k1 + r1 * k0 + c00 * w01 + c10 * w11 + c20 * w21
            m02 = blocks[item, 2, k] - q03 * k2 + r2 * k0 + c00 * w02 + c10 * w12 + c20 * w22
            m11 = blocks[item, 4, k] - q13 * k1 + r1 * k1 + c01 * w01 + c11 * w11 + c21 * w21
            m12 = blocks[item, 5, k] - q13 * k2 + r2 * k1 + c01 * w02 + c11 * w12 + c21 * w22
            m22 = blocks[item, 7, k] - q23 * k2 + r2 * k2 + c02 * w02 + c12 * w12 + c22 * w22
        whole[item, 0], whole[item, 1], whole[item, 2] = m00, m01, m02
        whole[item, 3], whole[item, 4], whole[item, 5] = m11, m12, m22


@_kernel
def _sweep(gains, inverse, h, q, x, first, last):
    steps, b0, half = q.shape[3] - 1, h * h * h / 6, h * h / 2
    for item in range(first, last):
        for column in range(q.shape[1]):
            p0, p1 = q[item, column, 0, steps], q[item, column, 1, steps]
            p2 = q[item, column, 2, steps]
            for k in range(steps - 1, -1, -1):
                pull = q[item, column, 3, k] + b0 * p0 + half * p1 + h * p2
                x[item, column, 3, k] = pull * gains[item, 3, k]
                p2 += q[item, column, 2, k] + half * p0 + h * p1 - gains[item, 2, k] * pull
                p1 += q[item, column, 1, k] + h * p0 - gains[item, 1, k] * pull
                p0 += q[item, column, 0, k] - gains[item, 0, k] * pull
            p = inverse[item, 0, 0] * p0 + inverse[item, 0, 1] * p1 + inverse[item, 0, 2] * p2
            v = inverse[item, 1, 0] * p0 + inverse[item, 1, 1] * p1 + inverse[item, 1, 2] * p2
            a = inverse[item, 2, 0] * p0 + inverse[item, 2, 1] * p1 + inverse[item, 2, 2] * p2
            for k in range(steps):
                held = gains[item, 0, k] * p + gains[item, 1, k] * v + gains[item, 2, k] * a
                j = x[item, column, 3, k] - held
                x[item, column, 0, k], x[item, column, 1, k] = p, v
                x[item, column, 2, k], x[item, column, 3, k] = a, j
                p += h * (v + h / 2 * (a + h / 3 * j))
                v += h * (a + h / 2 * j)
                a += h * j
            x[item, column, 0, steps], x[item, column, 1, steps] = p, v
            x[item, column, 2, steps], x[item, column, 3, steps] = a, 0.0
