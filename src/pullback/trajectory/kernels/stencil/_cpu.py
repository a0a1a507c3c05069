"""The stencil on the CPU: one pass over memory forwards, one backwards, in explicit vectors.

Samples and joints of a trajectory are one flat sequence. A *span* of it is what shares weights and
the window before and after it: the joints of one row at an end, or where steps differ; all inside
rows where steps are equal, and then a vector of it takes part of several samples. Backwards each
sample gathers from the rows that read it, so that nothing is written twice.

Kernels index flat memory, of which they are given addresses: ``table`` is where the weights of a
trajectory begin, ``row`` where those of one row do; the weights of the next order of derivative lie
``columns`` further on. ``several`` are the first and after the last of some trajectories.

Explicit vectors store past the caches what does not fit them, which no plain loop can ask for:
plain loops take twice as long on the whole operation (benchmarks/results/kernels_plain_loops.csv).
"""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pullback.internal.kernels._cpu import compile_kernel, compile_part
from pullback.internal.kernels._threads import ZEROS, count_threads, in_memory, run_slices
from pullback.internal.kernels.vectors._cpu import (
    ROW,
    VECTOR_BYTES,
    fence,
    load,
    load_first,
    on_stack,
    pointer_at,
    pointers_at,
    splat,
    store_first,
    store_past_caches,
)
from pullback.trajectory.kernels.stencil._reference import free_ends, replace_ends

__all__ = ["apply", "apply_adjoint"]

# What this many numbers are computed from, and they, do not fit the caches together: five times
# four megabytes. With twice as many, 64 x 4096 x 7 took 1.4 times as long on two threads.
_MANY = 1 << 20

# Trajectories that are worked on together: as many as have about so many numbers, so that what a
# loop prepares serves them all and their numbers stay in the second-level cache.
_TOGETHER = 1 << 13

# Three weights of each of the rows that read a sample: at most twice the widest row's samples.
_READERS = 3 * 2 * 5

_kernel, _part = compile_kernel(nogil=True), compile_part(nogil=True)
# Into its callers: with as many readers as a caller knows a loop over them is unrolled.
_unrolled = compile_part(nogil=True, inline="always")


class Shape(NamedTuple):
    """The sizes of a problem, those of its weights, and the first of its `Layout.geometry`."""

    horizon: int
    dof: int
    tables: int
    rows: int
    columns: int
    before: int
    width: int
    left: int
    right: int


@_part
def _find_table(b, shape):
    # Where the weights of trajectory b begin: there may be one table for all.
    return (b if shape.tables > 1 else 0) * shape.rows * 3 * shape.columns


@_part
def _find_row(h, shape):
    # Where the weights of row h begin in its table, which may hold one row for all inside rows.
    horizon, rows, left = shape.horizon, shape.rows, shape.left
    if rows != horizon and h >= left:
        h = h - horizon + rows if h >= horizon - shape.right else left
    return h * 3 * shape.columns


@_part
def _find_window(h, shape):
    return min(max(h - shape.before, 0), shape.horizon - shape.width)


@_part
def _whole_weight(weights, row, own, width):
    # The weight of a row's own sample: differences are relative to it.
    total = weights[row] - weights[row]
    for n in range(width):
        if n != own:
            total -= weights[row + n]
    return total


@_part
def _is_flat(shape, inside):
    """Whether inside rows share weights and can go as one span, which must fill a vector."""
    return shape.rows < shape.horizon and inside >= ROW


@_part
def _take(pointer, index, count):
    return load(pointer, index) if count == ROW else load_first(pointer, index, count)


@_part
def _put(pointer, index, vector, count, past_caches):
    if past_caches and count == ROW and index % ROW == 0:
        store_past_caches(pointer, index, vector)
    else:
        store_first(pointer, index, vector, count)


@_part
def _step(i, last):
    # The next vector lies on whole vectors of memory; the last one ends where the span does, and
    # both write again what the one before them has written.
    return min(i + ROW - i % ROW, last)


@_unrolled
def _forward_span(width, count, given):
    span, known, outputs, several, weights, table, shape, past_caches = given
    # Inside rows weigh no boundary values, and where their window has a middle that is their own.
    h, size, inside = span
    x, conditions = known
    horizon, dof, columns = shape.horizon, shape.dof, shape.columns
    v_row = table + _find_row(h, shape)
    a_row, j_row = v_row + columns, v_row + 2 * columns
    window = (_find_window(h, shape) - h) * dof
    nothing = splat(weights[table] - weights[table])
    for b in range(several[0], several[1]):
        start = (b * horizon + h) * dof
        other, i, last = b * (columns - width) * dof - start, start, start + size - count
        while True:
            here, begin = _take(x, i, count), i + window
            v, a, j = nothing, nothing, nothing
            # Mirrored weights come in pairs, so that what is symmetric cancels exactly.
            for n in range(width // 2 if inside else 0):
                o = width - 1 - n
                near = _take(x, begin + n * dof, count) - here
                far = _take(x, begin + o * dof, count) - here
                v += splat(weights[v_row + n]) * near + splat(weights[v_row + o]) * far
                a += splat(weights[a_row + n]) * near + splat(weights[a_row + o]) * far
                j += splat(weights[j_row + n]) * near + splat(weights[j_row + o]) * far
            for n in range(0 if inside else columns):
                if n < width:
                    part = _take(x, begin + n * dof, count) - here
                else:
                    part = _take(conditions, other + i + (n - width) * dof, count)
                v += splat(weights[v_row + n]) * part
                a += splat(weights[a_row + n]) * part
                j += splat(weights[j_row + n]) * part
            _put(outputs[0], i, here, count, past_caches)
            _put(outputs[1], i, v, count, past_caches)
            _put(outputs[2], i, a, count, past_caches)
            _put(outputs[3], i, j, count, past_caches)
            if i == last:
                break
            i = _step(i, last)


@_part
def _count_together(shape):
    # Weights of their own part them.
    return 1 if shape.tables > 1 else max(1, _TOGETHER // (shape.horizon * shape.dof))


@_kernel
def _forward(zero, given, known, weights_at, shape, past_caches, levels, first, last):
    shape = Shape(*shape)
    horizon, left, right = shape.horizon, shape.left, shape.right
    x, conditions = pointer_at(given, zero), pointer_at(known, zero)
    weights, outputs = pointer_at(weights_at, zero), pointers_at(levels, zero)
    inside = (horizon - left - right) * shape.dof
    flat, together = _is_flat(shape, inside), _count_together(shape)
    for b in range(first, last, together):
        several = (b, min(b + together, last))
        table = _find_table(b, shape)
        h = 0
        while h < horizon:
            whole = flat and h == left
            span = (h, inside if whole else shape.dof, whole)
            given = (span, (x, conditions), outputs, several, weights, table, shape, past_caches)
            if whole and shape.width == 5:
                _forward_span(5, ROW, given)
            elif whole:
                _forward_span(4, ROW, given)
            else:
                _forward_span(shape.width, min(ROW, shape.dof), given)
            h = horizon - right if whole else h + 1
    if past_caches:
        fence()


@_part
def _collect_readers(m, weights, table, readers, shape):
    # The first of the rows that read sample m and how many there are, at most twice their width;
    # ``readers`` gets three weights of each.
    horizon, before, width = shape.horizon, shape.before, shape.width
    first = 0 if m < width else m - width + 1 + before
    last = horizon if m >= horizon - width else m + before + 1
    for h in range(first, last):
        n, row = m - _find_window(h, shape), table + _find_row(h, shape)
        for k in range(3):
            at = row + k * shape.columns
            weight = _whole_weight(weights, at, n, width) if h == m else weights[at + n]
            readers[3 * (h - first) + k] = weight
    return first, last - first


@_unrolled
def _adjoint_span(many, count, m, size, given):
    gradients, out, several, first, readers, shape, past_caches = given
    position, velocity, acceleration, jerk = gradients
    horizon, dof = shape.horizon, shape.dof
    for b in range(several[0], several[1]):
        start = (b * horizon + m) * dof
        i, last = start, start + size - count
        while True:
            total, c, w = _take(position, i, count), i + (first - m) * dof, 0
            for _ in range(many):
                v = splat(readers[w]) * _take(velocity, c, count)
                a = splat(readers[w + 1]) * _take(acceleration, c, count)
                total += (v + a) + splat(readers[w + 2]) * _take(jerk, c, count)
                c, w = c + dof, w + 3
            _put(out, i, total, count, past_caches)
            if i == last:
                break
            i = _step(i, last)


@_part
def _adjoint_known(gradients, values, b, weights, table, shape):
    # Of boundary values, which rows at the ends read alone.
    _, velocity, acceleration, jerk = gradients
    horizon, dof, columns = shape.horizon, shape.dof, shape.columns
    width, left, right = shape.width, shape.left, shape.right
    at, known = b * horizon * dof, b * (columns - width) * dof
    for n in range(width, columns):
        for d in range(0, dof, ROW):
            count = min(ROW, dof - d)
            total = splat(weights[table] - weights[table])
            for end in range(left + right):
                h = end if end < left else horizon - right + (end - left)
                row, c = table + _find_row(h, shape) + n, at + h * dof + d
                v = splat(weights[row]) * _take(velocity, c, count)
                a = splat(weights[row + columns]) * _take(acceleration, c, count)
                j = splat(weights[row + 2 * columns]) * _take(jerk, c, count)
                total += (v + a) + j
            store_first(values, known + (n - width) * dof + d, total, count)


@_kernel
def _adjoint(zero, levels, weights_at, shape, past_caches, gradient, of_known, first, last):
    shape = Shape(*shape)
    horizon, dof, width = shape.horizon, shape.dof, shape.width
    readers, weights = on_stack(zero, _READERS), pointer_at(weights_at, zero)
    gradients = pointers_at(levels, zero)
    out, values = pointer_at(gradient, zero), pointer_at(of_known, zero)
    # Samples further from the ends than a window are read by inside rows only.
    inside = (horizon - 2 * width) * dof
    flat, together = _is_flat(shape, inside), _count_together(shape)
    for b in range(first, last, together):
        several = (b, min(b + together, last))
        table = _find_table(b, shape)
        m = 0
        while m < horizon:
            whole = flat and m == width
            row, many = _collect_readers(m, weights, table, readers, shape)
            given = (gradients, out, several, row, readers, shape, past_caches)
            if not whole:
                _adjoint_span(many, min(ROW, dof), m, dof, given)
            elif width == 5:
                _adjoint_span(5, ROW, m, inside, given)
            else:
                _adjoint_span(4, ROW, m, inside, given)
            m = horizon - width if whole else m + 1
        for one in range(several[0], several[1]):
            _adjoint_known(gradients, values, one, weights, table, shape)
    if past_caches:
        fence()


@functools.lru_cache(maxsize=64)
def _shape(
    horizon: int, dof: int, tables: int, rows: int, columns: int, geometry: tuple[int, ...]
) -> tuple[int, ...]:
    # Its fields have their names again in the kernel: numba takes 3 us to read a named tuple.
    return tuple(Shape(horizon, dof, tables, rows, columns, *geometry[:4]))


def apply(
    x: Tensor, conditions: Tensor, weights: Tensor, geometry: tuple[int, ...]
) -> tuple[Tensor, ...]:
    """`pullback.trajectory.kernels.stencil._reference.apply` on the CPU."""
    dtype, wanted = weights.dtype, x.dtype
    x = in_memory(replace_ends(x, conditions, geometry), dtype)
    conditions, new = in_memory(conditions, dtype), torch.empty_like
    outputs = (new(x), new(x), new(x), new(x))
    levels = tuple([output.data_ptr() for output in outputs])
    given = {"given": x.data_ptr(), "known": conditions.data_ptr(), "levels": levels}
    _run(_forward, x.shape, weights, geometry, given, levels)
    return outputs if dtype is wanted else tuple(part.to(wanted) for part in outputs)


def apply_adjoint(
    cotangents: tuple[Tensor, Tensor, Tensor, Tensor], weights: Tensor, geometry: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """`pullback.trajectory.kernels.stencil._reference.apply_adjoint` on the CPU."""
    wanted, dtype = cotangents[0].dtype, weights.dtype
    lines = [in_memory(cotangent, dtype) for cotangent in cotangents]
    batch, _, dof = lines[0].shape
    gradient = torch.empty_like(lines[0])
    values = gradient.new_empty(batch, weights.shape[3] - geometry[1], dof)
    written = {"gradient": gradient.data_ptr(), "of_known": values.data_ptr()}
    levels = tuple([line.data_ptr() for line in lines])
    given = written | {"levels": levels}
    _run(_adjoint, gradient.shape, weights, geometry, given, written.values())
    free_ends(gradient, values, geometry)
    return gradient.to(wanted), values.to(wanted)


def _run(
    kernel: Any,
    sizes: torch.Size,
    weights: Tensor,
    geometry: tuple[int, ...],
    addresses: dict[str, Any],
    written: Iterable[int],
) -> None:
    """Run a kernel over all trajectories. Tensors go by their addresses: the caller keeps them.

    Sizes are batch, horizon and joints. Addresses have the names that the kernel has for them;
    ``written`` are those that it writes to.
    """
    batch, horizon, dof = sizes
    elements = batch * horizon * dof
    if not elements:
        return
    weights = in_memory(weights, weights.dtype)
    tables, rows, _, columns = weights.shape
    arguments = {
        "zero": ZEROS[weights.dtype],
        "weights_at": weights.data_ptr(),
        "shape": _shape(horizon, dof, tables, rows, columns, geometry),
        # Vectors are stored past the caches whole, from where they may begin.
        "past_caches": elements >= _MANY and not any(place % VECTOR_BYTES for place in written),
        **addresses,
    }
    run_slices(kernel, arguments, batch, count_threads(batch, elements))
