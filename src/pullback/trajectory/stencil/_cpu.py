"""The stencil on the CPU: one pass over memory forwards, one backwards.

Inside rows share one set of weights when steps are equal. Then samples and joints are one flat
sequence, and blocks of it that fit the first-level cache go through one plain loop for each
order, which the compiler turns into vector instructions. Everything else goes row by row.
"""

import numba
import numpy as np
import torch
from torch import Tensor

from pullback.trajectory._threads import run_in_slices

__all__ = ["apply_stencil", "apply_stencil_adjoint"]

# Elements in a block: the four outputs and the input, in float32, fill about half of 32 KiB.
_BLOCK = 1024

# How many last samples are read by a row of the end, or by fewer inside rows, in either scheme.
_NEAR = 4

# No fused multiply-add: products of mirrored weights and differences then cancel exactly.
_compile = numba.njit(cache=True, nogil=True, error_model="numpy")


@_compile
def _row_of(h, horizon, rows, left, right):
    if rows == horizon or h < left:
        return h
    return h - horizon + rows if h >= horizon - right else left


# A row of some trajectories by its own weights: the ends, and everything where steps differ.


@_compile
def _forward_row(h, outputs, values, weights, dof, geometry, first, last):
    position, velocity, acceleration, jerk = outputs
    before, width, left, right = geometry[:4]
    horizon, columns = position.shape[1] // dof, weights.shape[3]
    begin = min(max(h - before, 0), horizon - width)
    row = _row_of(h, horizon, weights.shape[1], left, right)
    for b in range(first, last):
        table = b if weights.shape[0] > 1 else 0
        for d in range(dof):
            i, node = h * dof + d, begin * dof + d
            here = position[b, i]
            away = position[b, node] - here
            v = weights[table, row, 0, 0] * away
            a = weights[table, row, 1, 0] * away
            j = weights[table, row, 2, 0] * away
            for n in range(1, width):
                node += dof
                away = position[b, node] - here
                v += weights[table, row, 0, n] * away
                a += weights[table, row, 1, n] * away
                j += weights[table, row, 2, n] * away
            for n in range(width, columns):
                known = values[b, (n - width) * dof + d]
                v += weights[table, row, 0, n] * known
                a += weights[table, row, 1, n] * known
                j += weights[table, row, 2, n] * known
            velocity[b, i], acceleration[b, i], jerk[b, i] = v, a, j


@_compile
def _adjoint_row(h, gradients, weights, out, values, dof, geometry, first, last):
    before, width, left, right = geometry[:4]
    horizon, columns = out.shape[1] // dof, weights.shape[3]
    begin = min(max(h - before, 0), horizon - width)
    row = _row_of(h, horizon, weights.shape[1], left, right)
    for b in range(first, last):
        table = b if weights.shape[0] > 1 else 0
        for d in range(dof):
            i, node = h * dof + d, begin * dof + d
            v, a, j = gradients[1][b, i], gradients[2][b, i], gradients[3][b, i]
            total = v * 0
            for n in range(width):
                share = weights[table, row, 0, n] * v + weights[table, row, 1, n] * a
                share += weights[table, row, 2, n] * j
                out[b, node] += share
                total += share
                node += dof
            out[b, i] -= total
            for n in range(width, columns):
                share = weights[table, row, 0, n] * v + weights[table, row, 1, n] * a
                share += weights[table, row, 2, n] * j
                values[b, (n - width) * dof + d] += share


# Inside rows with one set of weights. Shifted views with one index: an index that could be
# negative keeps a loop scalar (12 x slower); with more arrays in a loop the compiler gives up.


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
def _adjoint_central(g, out, row, dof, start, stop):
    w0, w1, w2, w3, w4 = row[0], row[1], row[2], row[3], row[4]
    before2, before1 = g[start - 2 * dof : stop - 2 * dof], g[start - dof : stop - dof]
    after1, after2 = g[start + dof : stop + dof], g[start + 2 * dof : stop + 2 * dof]
    centre, target = g[start:stop], out[start:stop]
    for i in range(target.shape[0]):
        target[i] += (
            w0 * after2[i] + w1 * after1[i] + w2 * centre[i] + w3 * before1[i] + w4 * before2[i]
        )


@_compile
def _adjoint_backward_scheme(g, out, row, dof, start, stop):
    w0, w1, w2, w3 = row[0], row[1], row[2], row[3]
    after1, after2 = g[start + dof : stop + dof], g[start + 2 * dof : stop + 2 * dof]
    after3, centre = g[start + 3 * dof : stop + 3 * dof], g[start:stop]
    target = out[start:stop]
    for i in range(target.shape[0]):
        target[i] += w0 * after3[i] + w1 * after2[i] + w2 * after1[i] + w3 * centre[i]


@_compile
def _adjoint_near_ends(gradients, out, inside, dof, before, width):
    # Samples that only some inside rows read: column n of the weights reaches those from n on at
    # the left, and the first n of the last four at the right.
    gv, ga, gj = gradients[1], gradients[2], gradients[3]
    left, right = (width - 1) * dof, out.shape[0] - _NEAR * dof
    for n in range(width):
        v, a, j, shift = inside[0, n], inside[1, n], inside[2, n], (before - n) * dof
        for i in range(n * dof, left):
            out[i] += (v * gv[i + shift] + a * ga[i + shift]) + j * gj[i + shift]
        for i in range(right, right + n * dof):
            out[i] += (v * gv[i + shift] + a * ga[i + shift]) + j * gj[i + shift]


@_compile
def _whole_weights(row, before, width):
    # The weight of the row's own sample is implied: differences are relative to it.
    result = row[:, :width].copy()
    for k in range(3):
        result[k, before] = 0
        result[k, before] = -result[k].sum()
    return result


@_compile
def _forward_inside(b, out, weights, dof, geometry, low, high):
    table = weights[b if weights.shape[0] > 1 else 0, geometry[2]]
    for start in range(low * dof, high * dof, _BLOCK):
        stop = min(start + _BLOCK, high * dof)
        for k in range(3):
            if geometry[1] == 5:
                _forward_central(out[0], out[k + 1], table[k], dof, start, stop)
            else:
                _forward_backward_scheme(out[0], out[k + 1], table[k], dof, start, stop)


@_compile
def _flat(array):
    return array.reshape(array.shape[0], array.shape[1] * array.shape[2])


@_compile
def _forward(samples, conditions, weights, results, geometry, first, last):
    left, right, head, tail = geometry[2:]
    horizon, dof = samples.shape[1:]
    x, values = _flat(samples), _flat(conditions)
    outputs = (_flat(results[0]), _flat(results[1]), _flat(results[2]), _flat(results[3]))
    shared = weights.shape[1] < horizon
    for b in range(first, last):
        # The positions with their ends replaced are what all rows read, still in cache.
        line = outputs[0][b]
        line[:] = x[b]
        if head >= 0:
            line[:dof] = values[b, head * dof : (head + 1) * dof]
        if tail >= 0:
            line[-dof:] = values[b, tail * dof : (tail + 1) * dof]
        if shared:
            out = (line, outputs[1][b], outputs[2][b], outputs[3][b])
            _forward_inside(b, out, weights, dof, geometry, left, horizon - right)
        else:
            for h in range(horizon):
                _forward_row(h, outputs, values, weights, dof, geometry, b, b + 1)
    if shared:
        for h in range(left):
            _forward_row(h, outputs, values, weights, dof, geometry, first, last)
        for h in range(horizon - right, horizon):
            _forward_row(h, outputs, values, weights, dof, geometry, first, last)


@_compile
def _adjoint_inside(g, out, row, dof, before, width):
    # The samples that ``width`` inside rows read, and then the few near the ends.
    begin, end = (width - 1) * dof, out.shape[0] - _NEAR * dof
    out[:begin], out[end:] = g[0][:begin], g[0][end:]
    for start in range(begin, end, _BLOCK):
        stop = min(start + _BLOCK, end)
        out[start:stop] = g[0][start:stop]
        for k in range(3):
            if width == 5:
                _adjoint_central(g[k + 1], out, row[k], dof, start, stop)
            else:
                _adjoint_backward_scheme(g[k + 1], out, row[k], dof, start, stop)
    _adjoint_near_ends(g, out, row, dof, before, width)


@_compile
def _adjoint(cotangents, weights, gradient, known, geometry, first, last):
    before, width, left, right, head, tail = geometry
    horizon, dof = gradient.shape[1:]
    out, values = _flat(gradient), _flat(known)
    gradients = (
        _flat(cotangents[0]),
        _flat(cotangents[1]),
        _flat(cotangents[2]),
        _flat(cotangents[3]),
    )
    shared = weights.shape[1] < horizon and horizon >= 2 * _NEAR
    values[first:last] = 0
    inside = _whole_weights(weights[0, left], before, width)
    for b in range(first, last):
        if shared:
            if weights.shape[0] > 1:
                inside = _whole_weights(weights[b, left], before, width)
            line = (gradients[0][b], gradients[1][b], gradients[2][b], gradients[3][b])
            _adjoint_inside(line, out[b], inside, dof, before, width)
        else:
            out[b] = gradients[0][b]
            for h in range(horizon):
                _adjoint_row(h, gradients, weights, out, values, dof, geometry, b, b + 1)
    if shared:
        for h in range(left):
            _adjoint_row(h, gradients, weights, out, values, dof, geometry, first, last)
        for h in range(horizon - right, horizon):
            _adjoint_row(h, gradients, weights, out, values, dof, geometry, first, last)
    if head >= 0:
        values[first:last, head * dof : (head + 1) * dof] += out[first:last, :dof]
        out[first:last, :dof] = 0
    if tail >= 0:
        values[first:last, tail * dof : (tail + 1) * dof] += out[first:last, -dof:]
        out[first:last, -dof:] = 0


def _array(tensor: Tensor, dtype: torch.dtype) -> np.ndarray:
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor.numpy()


def apply_stencil(
    x: Tensor, conditions: Tensor, weights: Tensor, geometry: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`pullback.trajectory.stencil._reference.apply_stencil` on the CPU."""
    shape, dtype = x.shape, weights.dtype
    outputs = tuple(torch.empty(shape, dtype=dtype) for _ in range(4))
    if 0 not in shape:
        samples, values, table = _array(x, dtype), _array(conditions, dtype), _array(weights, dtype)
        arrays = tuple(output.numpy() for output in outputs)

        def run(first: int, last: int) -> None:
            _forward(samples, values, table, arrays, geometry, first, last)

        run_in_slices(run, shape[0], shape.numel())
    position, velocity, acceleration, jerk = outputs
    if dtype == x.dtype:
        return position, velocity, acceleration, jerk
    return position.to(x.dtype), velocity.to(x.dtype), acceleration.to(x.dtype), jerk.to(x.dtype)


def apply_stencil_adjoint(
    cotangents: tuple[Tensor, Tensor, Tensor, Tensor], weights: Tensor, geometry: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """`pullback.trajectory.stencil._reference.apply_stencil_adjoint` on the CPU."""
    shape, wanted, dtype = cotangents[0].shape, cotangents[0].dtype, weights.dtype
    gradient = torch.empty(shape, dtype=dtype)
    values = torch.zeros(shape[0], weights.shape[3] - geometry[1], shape[2], dtype=dtype)
    if 0 not in shape:
        given = tuple(_array(cotangent, dtype) for cotangent in cotangents)
        table, out, known = _array(weights, dtype), gradient.numpy(), values.numpy()

        def run(first: int, last: int) -> None:
            _adjoint(given, table, out, known, geometry, first, last)

        run_in_slices(run, shape[0], shape.numel())
    if dtype == wanted:
        return gradient, values
    return gradient.to(wanted), values.to(wanted)
