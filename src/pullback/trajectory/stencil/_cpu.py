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

# Rows that the outermost ``width`` samples are read by, ends included, in either scheme.
_REACH = 7

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
    for d in range(dof):
        here = x[base + d]
        # The row's own difference is zero, so its entry counts for nothing.
        away = x[begin * dof + d] - here
        v, a, j = row[0, 0] * away, row[1, 0] * away, row[2, 0] * away
        for n in range(1, width):
            away = x[(begin + n) * dof + d] - here
            v += row[0, n] * away
            a += row[1, n] * away
            j += row[2, n] * away
        for n in range(row.shape[1] - width):
            known = values[n * dof + d]
            v += row[0, width + n] * known
            a += row[1, width + n] * known
            j += row[2, width + n] * known
        out[1][base + d], out[2][base + d], out[3][base + d] = v, a, j


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


# Shifted views with one index: an index that could be negative keeps the loop scalar (12 x slower).


@_compile
def _forward_central(x, out, row, dof, start, stop):
    w0, w1, w3, w4 = row[0], row[1], row[3], row[4]
    before2, before1 = x[start - 2 * dof : stop - 2 * dof], x[start - dof : stop - dof]
    after1, after2 = x[start + dof : stop + dof], x[start + 2 * dof : stop + 2 * dof]
    centre, target = x[start:stop], out[start:stop]
    for i in range(target.shape[0]):
        here = centre[i]
        target[i] = (w0 * (before2[i] - here) + w4 * (after2[i] - here)) + (
            w1 * (before1[i] - here) + w3 * (after1[i] - here)
        )


@_compile
def _forward_backward_scheme(x, out, row, dof, start, stop):
    w0, w1, w2 = row[0], row[1], row[2]
    before3, before2 = x[start - 3 * dof : stop - 3 * dof], x[start - 2 * dof : stop - 2 * dof]
    before1, centre, target = x[start - dof : stop - dof], x[start:stop], out[start:stop]
    for i in range(target.shape[0]):
        here = centre[i]
        target[i] = (w0 * (before3[i] - here) + w1 * (before2[i] - here)) + (
            w2 * (before1[i] - here)
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


# One order at a time: with more arrays in a loop the compiler gives up on vector instructions.


@_compile
def _gather_central(g, out, row, dof, start, stop):
    w0, w1, w2, w3, w4 = row[0], row[1], row[2], row[3], row[4]
    before2, before1 = g[start - 2 * dof : stop - 2 * dof], g[start - dof : stop - dof]
    after1, after2 = g[start + dof : stop + dof], g[start + 2 * dof : stop + 2 * dof]
    centre, target = g[start:stop], out[start:stop]
    for i in range(target.shape[0]):
        target[i] += (
            w0 * after2[i] + w1 * after1[i] + w2 * centre[i] + w3 * before1[i] + w4 * before2[i]
        )


@_compile
def _gather_backward_scheme(g, out, row, dof, start, stop):
    w0, w1, w2, w3 = row[0], row[1], row[2], row[3]
    after1, after2 = g[start + dof : stop + dof], g[start + 2 * dof : stop + 2 * dof]
    after3, centre = g[start + 3 * dof : stop + 3 * dof], g[start:stop]
    target = out[start:stop]
    for i in range(target.shape[0]):
        target[i] += w0 * after3[i] + w1 * after2[i] + w2 * after1[i] + w3 * centre[i]


@_compile
def _adjoint_central(gp, gv, ga, gj, out, row, dof, start, stop):
    for first in range(start, stop, _BLOCK):
        last = min(first + _BLOCK, stop)
        out[first:last] = gp[first:last]
        _gather_central(gv, out, row[0], dof, first, last)
        _gather_central(ga, out, row[1], dof, first, last)
        _gather_central(gj, out, row[2], dof, first, last)


@_compile
def _adjoint_backward_scheme(gp, gv, ga, gj, out, row, dof, start, stop):
    for first in range(start, stop, _BLOCK):
        last = min(first + _BLOCK, stop)
        out[first:last] = gp[first:last]
        _gather_backward_scheme(gv, out, row[0], dof, first, last)
        _gather_backward_scheme(ga, out, row[1], dof, first, last)
        _gather_backward_scheme(gj, out, row[2], dof, first, last)


@_compile
def _inside_weights(row, before, width):
    result = np.zeros((3, 5), dtype=row.dtype)
    for k in range(3):
        for j in range(width):
            result[k, j] = _weight_of(row, k, j, before, width)
    return result


@_compile
def _end_weights(weights, horizon, first, lowest, geometry):
    # What each of the ``width`` samples from ``first`` on receives from the rows near it.
    before, width, left, right = geometry[:4]
    result = np.zeros((width, _REACH, 3), dtype=weights.dtype)
    for h in range(lowest, lowest + _REACH):
        begin = min(max(h - before, 0), horizon - width)
        row = weights[_row_of(h, horizon, weights.shape[0], left, right)]
        for i in range(first, first + width):
            if begin <= i < begin + width:
                for k in range(3):
                    weight = _weight_of(row, k, i - begin, h - begin, width)
                    result[i - first, h - lowest, k] = weight
    return result


@_compile
def _adjoint_end(gradients, table, first, lowest, dof, out):
    gp, gv, ga, gj = gradients
    for i in range(table.shape[0]):
        for d in range(dof):
            total = gp[(first + i) * dof + d]
            near = lowest * dof + d
            for h in range(_REACH):
                total += (
                    table[i, h, 0] * gv[near]
                    + table[i, h, 1] * ga[near]
                    + table[i, h, 2] * gj[near]
                )
                near += dof
            out[(first + i) * dof + d] = total


@_compile
def _adjoint(gradients, weights, out, values, dof, geometry, first, last):
    before, width, left = geometry[:3]
    horizon = gradients[0].shape[1] // dof
    # Short of this, a sample may be near both ends.
    compact = weights.shape[1] < horizon and horizon >= 2 * _REACH
    low, high = width * dof, (horizon - width) * dof
    own = weights.shape[0] > 1
    row = _inside_weights(weights[0, left], before, width)
    head = (
        _end_weights(weights[0], horizon, 0, 0, geometry)
        if compact
        else np.zeros((0, _REACH, 3), dtype=weights.dtype)
    )
    tail = head
    if compact:
        tail = _end_weights(weights[0], horizon, horizon - width, horizon - _REACH, geometry)
    for b in range(first, last):
        table = weights[b if own else 0]
        line = (gradients[0][b], gradients[1][b], gradients[2][b], gradients[3][b])
        if compact:
            if own:
                row = _inside_weights(table[left], before, width)
                head = _end_weights(table, horizon, 0, 0, geometry)
                tail = _end_weights(table, horizon, horizon - width, horizon - _REACH, geometry)
            _adjoint_end(line, head, 0, 0, dof, out[b])
            if width == 5:
                _adjoint_central(line[0], line[1], line[2], line[3], out[b], row, dof, low, high)
            else:
                _adjoint_backward_scheme(
                    line[0], line[1], line[2], line[3], out[b], row, dof, low, high
                )
            _adjoint_end(line, tail, horizon - width, horizon - _REACH, dof, out[b])
        else:
            for i in range(horizon):
                _adjoint_sample(line, table, i, dof, geometry, out[b])
        if values.shape[1] > 0:
            _adjoint_values(line, table, dof, geometry, out[b], values[b])


def _flat(tensor: Tensor, dtype: torch.dtype) -> np.ndarray:
    batch = tensor.shape[0]
    size = tensor.shape[1] * tensor.shape[2]
    tensor = tensor.detach()
    if tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    return tensor.contiguous().view(batch, size).numpy()


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
