"""The stencil on the CPU: one pass over memory forwards, one backwards.

Inside rows share one set of weights when steps are equal. Then samples and joints are one flat
sequence, and blocks of it that fit the first-level cache go through one plain loop for each
output, which the compiler turns into vector instructions. Everything else goes row by row.
"""

import numba
import numpy as np
import torch
from torch import Tensor

from pullback.trajectory._threads import run_in_slices

__all__ = ["apply_stencil", "apply_stencil_adjoint"]

# Elements in a block: the four outputs and the input, in float32, fill about half of 32 KiB.
_BLOCK = 1024

# No fused multiply-add: products of mirrored weights and differences then cancel exactly.
_compile = numba.njit(cache=True, nogil=True, error_model="numpy")


@_compile
def _row_of(h, horizon, rows, left, right):
    if rows == horizon or h < left:
        return h
    return h - horizon + rows if h >= horizon - right else left


@_compile
def _forward_row(x, values, weights, out, h, dof, geometry):
    before, width, left, right = geometry[:4]
    horizon = x.shape[0] // dof
    begin = min(max(h - before, 0), horizon - width)
    row = weights[_row_of(h, horizon, weights.shape[0], left, right)]
    base = h * dof
    for k in range(3):
        target = out[k + 1][base : base + dof]
        target[:] = 0
        for j in range(width):
            if begin + j != h:
                weight, away = row[k, j], (begin + j) * dof
                for d in range(dof):
                    target[d] += weight * (x[away + d] - x[base + d])
        for m in range(row.shape[1] - width):
            weight = row[k, width + m]
            for d in range(dof):
                target[d] += weight * values[m * dof + d]


@_compile
def _forward_inside(x, row, out, h, dof, before, width):
    # A row with weights of its own, away from the ends.
    base = h * dof
    for k in range(3):
        target = out[k + 1]
        w0, w1, w2, w3 = row[k, 0], row[k, 1], row[k, 2], row[k, 3]
        if width == 5:
            w4 = row[k, 4]
            for d in range(base, base + dof):
                here = x[d]
                target[d] = (w0 * (x[d - 2 * dof] - here) + w4 * (x[d + 2 * dof] - here)) + (
                    w1 * (x[d - dof] - here) + w3 * (x[d + dof] - here)
                )
        else:
            for d in range(base, base + dof):
                here = x[d]
                target[d] = (w0 * (x[d - 3 * dof] - here) + w1 * (x[d - 2 * dof] - here)) + (
                    w2 * (x[d - dof] - here)
                )


@_compile
def _forward_central(x, out, row, dof, start, stop):
    w0, w1, w3, w4 = row[0], row[1], row[3], row[4]
    for i in range(start, stop):
        here = x[i]
        out[i] = (w0 * (x[i - 2 * dof] - here) + w4 * (x[i + 2 * dof] - here)) + (
            w1 * (x[i - dof] - here) + w3 * (x[i + dof] - here)
        )


@_compile
def _forward_backward_scheme(x, out, row, dof, start, stop):
    w0, w1, w2 = row[0], row[1], row[2]
    for i in range(start, stop):
        here = x[i]
        out[i] = (w0 * (x[i - 3 * dof] - here) + w1 * (x[i - 2 * dof] - here)) + (
            w2 * (x[i - dof] - here)
        )


@_compile
def _forward(x, values, weights, outputs, dof, geometry, block, first, last):
    before, width, left, right, head, tail = geometry
    horizon = x.shape[1] // dof
    compact = weights.shape[1] < horizon
    low, high = left, horizon - right
    for b in range(first, last):
        table = weights[b if weights.shape[0] > 1 else 0]
        out = (outputs[0][b], outputs[1][b], outputs[2][b], outputs[3][b])
        # The positions with their ends replaced are what all rows read, still in cache.
        line = out[0]
        line[:] = x[b]
        if head >= 0:
            line[:dof] = values[b, head * dof : (head + 1) * dof]
        if tail >= 0:
            line[-dof:] = values[b, tail * dof : (tail + 1) * dof]
        for h in range(low):
            _forward_row(line, values[b], table, out, h, dof, geometry)
        if compact:
            for start in range(low * dof, high * dof, block):
                stop = min(start + block, high * dof)
                for k in range(3):
                    if width == 5:
                        _forward_central(line, out[k + 1], table[left, k], dof, start, stop)
                    else:
                        _forward_backward_scheme(line, out[k + 1], table[left, k], dof, start, stop)
        else:
            for h in range(low, high):
                _forward_inside(line, table[h], out, h, dof, before, width)
        for h in range(high, horizon):
            _forward_row(line, values[b], table, out, h, dof, geometry)


@_compile
def _weight_of(row, k, j, centre, width):
    # The weight of the row's own sample is implied: differences are relative to it.
    if j != centre:
        return row[k, j]
    total = row[k, 0] * 0
    for other in range(width):
        if other != centre:
            total -= row[k, other]
    return total


@_compile
def _adjoint_sample(gradients, weights, i, dof, geometry, target):
    before, width, left, right = geometry[:4]
    horizon = gradients[0].shape[0] // dof
    for d in range(dof):
        target[i * dof + d] = gradients[0][i * dof + d]
    for h in range(max(0, i - width), min(horizon, i + width + 1)):
        begin = min(max(h - before, 0), horizon - width)
        if begin <= i < begin + width:
            row = weights[_row_of(h, horizon, weights.shape[0], left, right)]
            for k in range(3):
                weight = _weight_of(row, k, i - begin, h - begin, width)
                for d in range(dof):
                    target[i * dof + d] += weight * gradients[k + 1][h * dof + d]


@_compile
def _adjoint_values(gradients, weights, dof, geometry, target, values):
    width, left, right, first, last = geometry[1:]
    horizon = gradients[0].shape[0] // dof
    values[:] = 0
    for h in range(horizon):
        if left <= h < horizon - right:
            continue
        row = weights[_row_of(h, horizon, weights.shape[0], left, right)]
        for m in range(row.shape[1] - width):
            for k in range(3):
                for d in range(dof):
                    values[m * dof + d] += row[k, width + m] * gradients[k + 1][h * dof + d]
    for d in range(dof):
        if first >= 0:
            values[first * dof + d] += target[d]
            target[d] = 0
        if last >= 0:
            end = (horizon - 1) * dof + d
            values[last * dof + d] += target[end]
            target[end] = 0


@_compile
def _adjoint_central(gp, gv, ga, gj, out, row, dof, start, stop):
    v0, v1, v2, v3, v4 = row[0, 0], row[0, 1], row[0, 2], row[0, 3], row[0, 4]
    a0, a1, a2, a3, a4 = row[1, 0], row[1, 1], row[1, 2], row[1, 3], row[1, 4]
    j0, j1, j2, j3, j4 = row[2, 0], row[2, 1], row[2, 2], row[2, 3], row[2, 4]
    for i in range(start, stop):
        p, m = i + dof, i - dof
        pp, mm = p + dof, m - dof
        out[i] = (
            gp[i]
            + (v0 * gv[pp] + v1 * gv[p] + v2 * gv[i] + v3 * gv[m] + v4 * gv[mm])
            + (a0 * ga[pp] + a1 * ga[p] + a2 * ga[i] + a3 * ga[m] + a4 * ga[mm])
            + (j0 * gj[pp] + j1 * gj[p] + j2 * gj[i] + j3 * gj[m] + j4 * gj[mm])
        )


@_compile
def _adjoint_backward_scheme(gp, gv, ga, gj, out, row, dof, start, stop):
    v0, v1, v2, v3 = row[0, 0], row[0, 1], row[0, 2], row[0, 3]
    a0, a1, a2, a3 = row[1, 0], row[1, 1], row[1, 2], row[1, 3]
    j0, j1, j2, j3 = row[2, 0], row[2, 1], row[2, 2], row[2, 3]
    for i in range(start, stop):
        p = i + dof
        q = p + dof
        r = q + dof
        out[i] = (
            gp[i]
            + (v0 * gv[r] + v1 * gv[q] + v2 * gv[p] + v3 * gv[i])
            + (a0 * ga[r] + a1 * ga[q] + a2 * ga[p] + a3 * ga[i])
            + (j0 * gj[r] + j1 * gj[q] + j2 * gj[p] + j3 * gj[i])
        )


@_compile
def _inside_weights(row, before, width):
    result = np.zeros((3, 5), dtype=row.dtype)
    for k in range(3):
        for j in range(width):
            result[k, j] = _weight_of(row, k, j, before, width)
    return result


@_compile
def _adjoint(gradients, weights, out, values, dof, geometry, first, last):
    before, width, left, right = geometry[:4]
    horizon = gradients[0].shape[1] // dof
    compact = weights.shape[1] < horizon
    # Samples that only inside rows read: the window of no other row reaches them.
    low = max(width, left + width)
    high = max(low, horizon - width - right)
    low = min(low, horizon)
    high = min(high, horizon)
    if not compact:
        low = high = horizon
    for b in range(first, last):
        table = weights[b if weights.shape[0] > 1 else 0]
        line = (gradients[0][b], gradients[1][b], gradients[2][b], gradients[3][b])
        for i in range(low):
            _adjoint_sample(line, table, i, dof, geometry, out[b])
        if high > low:
            row = _inside_weights(table[left], before, width)
            if width == 5:
                _adjoint_central(
                    line[0], line[1], line[2], line[3], out[b], row, dof, low * dof, high * dof
                )
            else:
                _adjoint_backward_scheme(
                    line[0], line[1], line[2], line[3], out[b], row, dof, low * dof, high * dof
                )
        for i in range(high, horizon):
            _adjoint_sample(line, table, i, dof, geometry, out[b])
        _adjoint_values(line, table, dof, geometry, out[b], values[b])


def _flat(tensor: Tensor, dtype: torch.dtype) -> np.ndarray:
    batch = tensor.shape[0]
    size = tensor.shape[1] * tensor.shape[2]
    return tensor.detach().to(dtype).contiguous().view(batch, size).numpy()


def apply_stencil(
    x: Tensor, conditions: Tensor, weights: Tensor, geometry: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`pullback.trajectory.stencil._reference.apply_stencil` on the CPU."""
    batch, _, dof = x.shape
    outputs = tuple(torch.empty(x.shape, dtype=weights.dtype) for _ in range(4))
    if x.numel() > 0:
        line, values = _flat(x, weights.dtype), _flat(conditions, weights.dtype)
        table = weights.detach().contiguous().numpy()
        arrays = tuple(_flat(output, weights.dtype) for output in outputs)
        ints = tuple(geometry)

        def run(first: int, last: int) -> None:
            _forward(line, values, table, arrays, dof, ints, _BLOCK, first, last)

        run_in_slices(run, batch, x.numel())
    velocity, acceleration, jerk = (output.to(x.dtype) for output in outputs[1:])
    return outputs[0].to(x.dtype), velocity, acceleration, jerk


def apply_stencil_adjoint(
    cotangents: tuple[Tensor, Tensor, Tensor, Tensor], weights: Tensor, geometry: list[int]
) -> tuple[Tensor, Tensor]:
    """`pullback.trajectory.stencil._reference.apply_stencil_adjoint` on the CPU."""
    batch, _, dof = cotangents[0].shape
    conditions = weights.shape[3] - geometry[1]
    gradient = torch.empty(cotangents[0].shape, dtype=weights.dtype)
    values = torch.zeros(batch, conditions, dof, dtype=weights.dtype)
    if gradient.numel() > 0:
        lines = tuple(_flat(cotangent, weights.dtype) for cotangent in cotangents)
        table = weights.detach().contiguous().numpy()
        out, flat_values = _flat(gradient, weights.dtype), _flat(values, weights.dtype)
        ints = tuple(geometry)

        def run(first: int, last: int) -> None:
            _adjoint(lines, table, out, flat_values, dof, ints, first, last)

        run_in_slices(run, batch, gradient.numel())
    return gradient.to(cotangents[0].dtype), values.to(cotangents[0].dtype)
