"""The stencil on the CPU, compiled by numba: a trajectory at a time, within a core's caches.

Where inside rows share one set of weights, samples and joints of a trajectory are one flat
sequence, whose derivatives are sums of shifted copies of it: loops that compilers make vectors of.
The few rows at the ends, and all rows where steps differ, go one by one. Backwards each sample
gathers from the rows that read it, so that nothing is written twice.
"""

import functools

import torch
from torch import Tensor

from pullback.internal.kernels._cpu import compile_kernel
from pullback.internal.kernels._threads import count_threads, in_memory, run_slices

__all__ = ["apply_stencil", "apply_stencil_adjoint"]

_compile = compile_kernel(nogil=True)


@_compile
def _row_of(h, horizon, rows, geometry):
    """The row of weights of sample h: all inside samples may share one."""
    if rows == horizon or h < geometry[2]:
        return h
    return h - horizon + rows if h >= horizon - geometry[3] else geometry[2]


@_compile
def _window_of(h, horizon, geometry):
    return min(max(h - geometry[0], 0), horizon - geometry[1])


@_compile
def _is_flat(table, horizon, geometry):
    """Whether inside rows share weights, and weigh no boundary value: a derivative of them may."""
    if table.shape[0] == horizon:
        return False
    for k in range(3):
        for n in range(geometry[1], table.shape[2]):
            if table[geometry[2], k, n] != 0:
                return False
    return True


@_compile
def _shifted(flat, begin, end, shift):
    return flat[begin + shift : end + shift]


@_compile
def _inside(line, out, weights, width, dof, begin, end):
    """A derivative of inside samples, flat: differences to a sample, weighed."""
    here, result = line[begin:end], out[begin:end]
    if width == 5:
        w0, w1, w3, w4 = weights[0], weights[1], weights[3], weights[4]
        b2, b1 = _shifted(line, begin, end, -2 * dof), _shifted(line, begin, end, -dof)
        a1, a2 = _shifted(line, begin, end, dof), _shifted(line, begin, end, 2 * dof)
        # Mirrored weights in pairs, so that what is symmetric cancels exactly.
        for i in range(result.shape[0]):
            x = here[i]
            far, near = w0 * (b2[i] - x) + w4 * (a2[i] - x), w1 * (b1[i] - x) + w3 * (a1[i] - x)
            result[i] = far + near
        return
    w0, w1, w2 = weights[0], weights[1], weights[2]
    b3, b2 = _shifted(line, begin, end, -3 * dof), _shifted(line, begin, end, -2 * dof)
    b1 = _shifted(line, begin, end, -dof)
    for i in range(result.shape[0]):
        x = here[i]
        result[i] = (w0 * (b3[i] - x) + w1 * (b2[i] - x)) + w2 * (b1[i] - x)


@_compile
def _row(line, known, out, weights, h, begin, width):
    """A derivative at one sample, from its window and the boundary values."""
    for d in range(line.shape[1]):
        total = weights[0] * (line[begin, d] - line[h, d])
        for n in range(1, width):
            total += weights[n] * (line[begin + n, d] - line[h, d])
        for n in range(known.shape[0]):
            total += weights[width + n] * known[n, d]
        out[h, d] = total


@_compile
def _forward(x, conditions, weights, geometry, position, velocity, acceleration, jerk, first, last):
    _, horizon, dof = x.shape
    tables, rows = weights.shape[:2]
    width, left, right, head, tail = geometry[1:]
    for b in range(first, last):
        table, line, known = weights[b if tables > 1 else 0], position[b], conditions[b]
        shared = _is_flat(table, horizon, geometry)
        line[:] = x[b]
        if head >= 0:
            line[0] = known[head]
        if tail >= 0:
            line[horizon - 1] = known[tail]
        for k in range(3):
            out = velocity[b] if k == 0 else (acceleration[b] if k == 1 else jerk[b])
            h = 0
            while h < horizon:
                row = table[_row_of(h, horizon, rows, geometry), k]
                _row(line, known, out, row, h, _window_of(h, horizon, geometry), width)
                h = horizon - right if shared and h == left - 1 else h + 1
            if shared:
                begin, end = left * dof, (horizon - right) * dof
                _inside(line.reshape(-1), out.reshape(-1), table[left, k], width, dof, begin, end)


@_compile
def _inside_adjoint(gradient, out, weights, width, dof, begin, end):
    """Add what inside samples get from one derivative: the transpose of `_inside`."""
    result, here = out[begin:end], gradient[begin:end]
    if width == 5:
        w0, w1, w3, w4 = weights[0], weights[1], weights[3], weights[4]
        own = -(w0 + w4) - (w1 + w3)
        a2, a1 = _shifted(gradient, begin, end, 2 * dof), _shifted(gradient, begin, end, dof)
        b1, b2 = _shifted(gradient, begin, end, -dof), _shifted(gradient, begin, end, -2 * dof)
        for i in range(result.shape[0]):
            far, near = w0 * a2[i] + w4 * b2[i], w1 * a1[i] + w3 * b1[i]
            result[i] += (far + near) + own * here[i]
        return
    w0, w1, w2 = weights[0], weights[1], weights[2]
    own = -(w0 + w1) - w2
    a3, a2 = _shifted(gradient, begin, end, 3 * dof), _shifted(gradient, begin, end, 2 * dof)
    a1 = _shifted(gradient, begin, end, dof)
    for i in range(result.shape[0]):
        result[i] += (w0 * a3[i] + w1 * a2[i]) + (w2 * a1[i] + own * here[i])


@_compile
def _sample_adjoint(gradient, out, table, k, m, geometry):
    """Add what one sample gets from one derivative: from all rows whose window holds it."""
    horizon, dof = gradient.shape
    rows, before, width = table.shape[0], geometry[0], geometry[1]
    first = 0 if m < width else m - width + 1 + before
    last = horizon if m >= horizon - width else m + before + 1
    for h in range(first, last):
        n = m - _window_of(h, horizon, geometry)
        row = table[_row_of(h, horizon, rows, geometry), k]
        if 0 <= n < width and h != m:
            for d in range(dof):
                out[m, d] += row[n] * gradient[h, d]
        elif h == m:  # differences are relative to it
            for i in range(width):
                if i != n:
                    for d in range(dof):
                        out[m, d] -= row[i] * gradient[m, d]


@_compile
def _known_adjoint(gradient, values, table, k, geometry, shared):
    """Add what boundary values get from one derivative."""
    horizon, dof = gradient.shape
    rows, width, left, right = table.shape[0], geometry[1], geometry[2], geometry[3]
    h = 0
    while h < horizon:
        row = table[_row_of(h, horizon, rows, geometry), k]
        for n in range(values.shape[0]):
            for d in range(dof):
                values[n, d] += row[width + n] * gradient[h, d]
        h = horizon - right if shared and h == left - 1 else h + 1


@_compile
def _adjoint(position, velocity, acceleration, jerk, weights, geometry, out, values, first, last):
    _, horizon, dof = position.shape
    tables = weights.shape[0]
    width, left, _, head, tail = geometry[1:]
    # Samples further from the ends than a window are read by inside rows only.
    begin, end = width * dof, (horizon - width) * dof
    for b in range(first, last):
        table, line = weights[b if tables > 1 else 0], out[b]
        shared = _is_flat(table, horizon, geometry)
        flat = shared and end > begin
        line[:] = position[b]
        for k in range(3):
            gradient = velocity[b] if k == 0 else (acceleration[b] if k == 1 else jerk[b])
            m = 0
            while m < horizon:
                _sample_adjoint(gradient, line, table, k, m, geometry)
                m = horizon - width if flat and m == width - 1 else m + 1
            if flat:
                sums, inner = line.reshape(-1), gradient.reshape(-1)
                _inside_adjoint(inner, sums, table[left, k], width, dof, begin, end)
            _known_adjoint(gradient, values[b], table, k, geometry, shared)
        # A sample that is replaced has no say; its gradient belongs to what replaces it.
        if head >= 0:
            values[b, head] += line[0]
            line[0] = 0
        if tail >= 0:
            values[b, tail] += line[horizon - 1]
            line[horizon - 1] = 0


def apply_stencil(
    x: Tensor, conditions: Tensor, weights: Tensor, geometry: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`pullback.trajectory.kernels.stencil._reference.apply_stencil` on the CPU."""
    dtype, wanted = weights.dtype, x.dtype
    x = in_memory(x, dtype)
    new = torch.empty_like
    outputs = (new(x), new(x), new(x), new(x))
    if x.numel() > 0:
        inputs = [in_memory(part, dtype).numpy() for part in (x, conditions, weights)]
        kernel = functools.partial(_forward, *inputs, geometry, *(out.numpy() for out in outputs))
        run_slices(kernel, x.shape[0], count_threads(x.shape[0], x.numel()))
    if dtype != wanted:
        position, velocity, acceleration, jerk = outputs
        return position.to(wanted), velocity.to(wanted), acceleration.to(wanted), jerk.to(wanted)
    return outputs


def apply_stencil_adjoint(
    cotangents: tuple[Tensor, Tensor, Tensor, Tensor], weights: Tensor, geometry: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """`pullback.trajectory.kernels.stencil._reference.apply_stencil_adjoint` on the CPU."""
    wanted, dtype = cotangents[0].dtype, weights.dtype
    given = [in_memory(cotangent, dtype) for cotangent in cotangents]
    batch, _, dof = given[0].shape
    gradient = torch.empty_like(given[0])
    values = given[0].new_zeros(batch, weights.shape[3] - geometry[1], dof)
    if gradient.numel() > 0:
        inputs = [part.numpy() for part in (*given, in_memory(weights, dtype))]
        kernel = functools.partial(_adjoint, *inputs, geometry, gradient.numpy(), values.numpy())
        run_slices(kernel, batch, count_threads(batch, gradient.numel()))
    if dtype != wanted:
        return gradient.to(wanted), values.to(wanted)
    return gradient, values
