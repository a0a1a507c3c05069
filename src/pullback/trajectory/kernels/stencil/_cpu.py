"""The stencil on the CPU: one pass over memory forwards, one backwards, in explicit vectors.

Where inside rows share one set of weights, samples and joints of a trajectory are one flat
sequence, and a vector of it takes part of several samples. The few rows at the ends, and all rows
where steps differ, go one by one, their joints in a vector. Backwards each sample gathers from
the rows that read it, so that nothing is written twice.

Kernels index flat memory, of which they are given addresses: ``table`` is where the weights of a
trajectory begin, ``row`` where those of one row do; the weights of the next order of derivative lie
``columns`` further on. ``several`` are the first and after the last of some trajectories.

Explicit vectors store past the caches what does not fit them, which no plain loop can ask for:
plain loops take twice as long on the whole operation (benchmarks/results/kernels_plain_loops.csv).
"""

# Long: one kernel and its transpose, which share how rows and windows are found.

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from numba import literally
from torch import Tensor

from pullback.internal.kernels._cpu import compile_kernel, compile_part
from pullback.internal.kernels._threads import ZEROS, count_threads, in_memory, run_slices
from pullback.internal.kernels.vectors._cpu import (
    ROW,
    VECTOR_BYTES,
    count_lanes,
    fence,
    load,
    load_row,
    on_stack,
    pointer_at,
    pointers_at,
    splat,
    splat_row,
    store,
    store_first,
    store_past_caches,
)

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


class Shape(NamedTuple):
    """The sizes of a problem, those of its weights, and its `Layout.geometry`."""

    horizon: int
    dof: int
    tables: int
    rows: int
    columns: int
    before: int
    width: int
    left: int
    right: int
    head: int
    tail: int


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
def _is_flat(weights, shape, inside):
    """Whether inside rows can go as one flat sequence, which must fill a vector.

    They must share weights, none of them of boundary values: of a table's derivative they may be.
    """
    flat = shape.rows < shape.horizon and inside >= count_lanes(weights)
    for t in range(shape.tables if flat else 0):
        row = t * shape.rows * 3 * shape.columns + _find_row(shape.left, shape)
        for k in range(3):
            for n in range(shape.width, shape.columns):
                flat = flat and weights[row + k * shape.columns + n] == 0
    return flat


@_part
def _put(pointer, index, vector, past_caches):
    if past_caches:
        store_past_caches(pointer, index, vector)
    else:
        store(pointer, index, vector)


@_part
def _step(i, last, lanes):
    # The next vector lies on whole vectors of memory; the last one ends where the region does.
    return min(i + lanes - i % lanes, last)


@_part
def _forward_row(h, width, known, outputs, several, weights, table, shape):
    literally(width)
    x, conditions = known
    horizon, dof, columns = shape.horizon, shape.dof, shape.columns
    v_row = table + _find_row(h, shape)
    a_row, j_row = v_row + columns, v_row + 2 * columns
    window = (_find_window(h, shape) - h) * dof
    for d in range(0, dof, ROW):
        count = min(ROW, dof - d)
        for b in range(several[0], several[1]):
            i, first = (b * horizon + h) * dof + d, b * (columns - width) * dof + d
            here, begin = load_row(x, i, count), i + window
            away = load_row(x, begin, count) - here
            v, a = splat_row(weights[v_row]) * away, splat_row(weights[a_row]) * away
            j = splat_row(weights[j_row]) * away
            for n in range(1, width):
                away = load_row(x, begin + n * dof, count) - here
                v += splat_row(weights[v_row + n]) * away
                a += splat_row(weights[a_row + n]) * away
                j += splat_row(weights[j_row + n]) * away
            for n in range(width, columns):
                given = load_row(conditions, first + (n - width) * dof, count)
                v += splat_row(weights[v_row + n]) * given
                a += splat_row(weights[a_row + n]) * given
                j += splat_row(weights[j_row + n]) * given
            store_first(outputs[0], i, here, count)
            store_first(outputs[1], i, v, count)
            store_first(outputs[2], i, a, count)
            store_first(outputs[3], i, j, count)


@_part
def _forward_inside(width, given):
    # The same of rows that share weights: samples and joints are one flat sequence.
    literally(width)
    x, outputs, several, weights, row, shape, region, past_caches = given
    horizon, dof, columns = shape.horizon, shape.dof, shape.columns
    lanes, v_row, a_row, j_row = count_lanes(x), row, row + columns, row + 2 * columns
    nothing = splat(weights[row] - weights[row])
    for b in range(several[0], several[1]):
        i, last = b * horizon * dof + region[0], b * horizon * dof + region[1] - lanes
        while True:
            here, begin = load(x, i), i - shape.before * dof
            v, a, j = nothing, nothing, nothing
            # Mirrored weights come in pairs, so that what is symmetric cancels exactly.
            for n in range(width // 2):
                o = width - 1 - n
                near, far = load(x, begin + n * dof) - here, load(x, begin + o * dof) - here
                v += splat(weights[v_row + n]) * near + splat(weights[v_row + o]) * far
                a += splat(weights[a_row + n]) * near + splat(weights[a_row + o]) * far
                j += splat(weights[j_row + n]) * near + splat(weights[j_row + o]) * far
            past = past_caches and i % lanes == 0
            _put(outputs[0], i, here, past)
            _put(outputs[1], i, v, past)
            _put(outputs[2], i, a, past)
            _put(outputs[3], i, j, past)
            if i == last:
                break
            i = _step(i, last, lanes)


@_part
def _replace_ends(x, conditions, position, several, shape):
    # The trajectories with the positions that are given at their ends, which is what rows read.
    horizon, dof = shape.horizon, shape.dof
    for i in range(several[0] * horizon * dof, several[1] * horizon * dof):
        position[i] = x[i]
    for b in range(several[0], several[1]):
        for end in range(2):
            column = shape.tail if end else shape.head
            i = (b * horizon + end * (horizon - 1)) * dof
            known = (b * (shape.columns - shape.width) + column) * dof
            for d in range(dof if column >= 0 else 0):
                position[i + d] = conditions[known + d]


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
    # Where ends are replaced, the first output is what rows read, too.
    replaced = shape.head >= 0 or shape.tail >= 0
    source = outputs[0] if replaced else x
    region = (left * shape.dof, (horizon - right) * shape.dof)
    flat = _is_flat(weights, shape, region[1] - region[0])
    together = _count_together(shape)
    for b in range(first, last, together):
        several = (b, min(b + together, last))
        table = _find_table(b, shape)
        if replaced:
            _replace_ends(x, conditions, source, several, shape)
        h = 0
        while h < horizon:
            if shape.width == 5:
                _forward_row(h, 5, (source, conditions), outputs, several, weights, table, shape)
            else:
                _forward_row(h, 4, (source, conditions), outputs, several, weights, table, shape)
            h = horizon - right if flat and h == left - 1 else h + 1
        row = table + _find_row(left, shape)
        inside = (source, outputs, several, weights, row, shape, region, past_caches)
        if flat and shape.width == 5:
            _forward_inside(5, inside)
        elif flat:
            _forward_inside(4, inside)
    if past_caches:
        fence()


@_part
def _find_readers(m, shape):
    # The rows that read sample m, from the first to before the last.
    horizon, before, width = shape.horizon, shape.before, shape.width
    first = 0 if m < width else m - width + 1 + before
    return first, horizon if m >= horizon - width else m + before + 1


@_part
def _collect_weights(m, weights, table, readers, shape):
    # Those with which rows read sample m, three for each of at most 2 * width rows.
    first, last = _find_readers(m, shape)
    for h in range(first, last):
        n = m - _find_window(h, shape)
        row = table + _find_row(h, shape)
        for k in range(3):
            at = row + k * shape.columns
            own = h == m
            weight = _whole_weight(weights, at, n, shape.width) if own else weights[at + n]
            readers[3 * (h - first) + k] = weight


@_part
def _adjoint_sample(m, gradients, out, several, readers, shape):
    position, velocity, acceleration, jerk = gradients
    horizon, dof = shape.horizon, shape.dof
    first, last = _find_readers(m, shape)
    for d in range(0, dof, ROW):
        count = min(ROW, dof - d)
        for b in range(several[0], several[1]):
            i, c, w = (b * horizon + m) * dof + d, (b * horizon + first) * dof + d, 0
            total = load_row(position, i, count)
            for _ in range(first, last):
                v = splat_row(readers[w]) * load_row(velocity, c, count)
                a = splat_row(readers[w + 1]) * load_row(acceleration, c, count)
                total += (v + a) + splat_row(readers[w + 2]) * load_row(jerk, c, count)
                c, w = c + dof, w + 3
            store_first(out, i, total, count)


@_part
def _adjoint_known(gradients, values, b, weights, table, shape, flat):
    _, velocity, acceleration, jerk = gradients
    horizon, dof, columns = shape.horizon, shape.dof, shape.columns
    width, left, right = shape.width, shape.left, shape.right
    at, known = b * horizon * dof, b * (columns - width) * dof
    for n in range(width, columns):
        for d in range(0, dof, ROW):
            count = min(ROW, dof - d)
            total = splat_row(weights[table] - weights[table])
            for end in range(left + right if flat else horizon):
                h = end if end < left or not flat else horizon - right + (end - left)
                row, c = table + _find_row(h, shape) + n, at + h * dof + d
                v = splat_row(weights[row]) * load_row(velocity, c, count)
                a = splat_row(weights[row + columns]) * load_row(acceleration, c, count)
                j = splat_row(weights[row + 2 * columns]) * load_row(jerk, c, count)
                total += (v + a) + j
            store_first(values, known + (n - width) * dof + d, total, count)


@_part
def _adjoint_inside(width, given):
    # The same of samples that only rows read which share weights.
    literally(width)
    gradients, out, several, readers, shape, region, past_caches = given
    position, velocity, acceleration, jerk = gradients
    horizon, dof, lanes = shape.horizon, shape.dof, count_lanes(out)
    for b in range(several[0], several[1]):
        i, last = b * horizon * dof + region[0], b * horizon * dof + region[1] - lanes
        while True:
            total, c = load(position, i), i + (shape.before + 1 - width) * dof
            for n in range(width):
                v = splat(readers[3 * n]) * load(velocity, c + n * dof)
                a = splat(readers[3 * n + 1]) * load(acceleration, c + n * dof)
                total += (v + a) + splat(readers[3 * n + 2]) * load(jerk, c + n * dof)
            _put(out, i, total, past_caches and i % lanes == 0)
            if i == last:
                break
            i = _step(i, last, lanes)


@_part
def _free_ends(out, values, b, shape):
    # A sample that is replaced has no say; its gradient belongs to what replaces it.
    horizon, dof = shape.horizon, shape.dof
    for end in range(2):
        column, i = shape.tail if end else shape.head, (b * horizon + end * (horizon - 1)) * dof
        known = (b * (shape.columns - shape.width) + column) * dof
        for d in range(dof if column >= 0 else 0):
            values[known + d] += out[i + d]
            out[i + d] = 0


@_kernel
def _adjoint(zero, levels, weights_at, shape, past_caches, gradient, of_known, first, last):
    shape = Shape(*shape)
    horizon, dof, width = shape.horizon, shape.dof, shape.width
    readers, weights = on_stack(zero, _READERS), pointer_at(weights_at, zero)
    gradients = pointers_at(levels, zero)
    out, values = pointer_at(gradient, zero), pointer_at(of_known, zero)
    # Samples further from the ends than a window are read by inside rows only.
    region = (width * dof, (horizon - width) * dof)
    flat = _is_flat(weights, shape, region[1] - region[0])
    together = _count_together(shape)
    for b in range(first, last, together):
        several = (b, min(b + together, last))
        table = _find_table(b, shape)
        m = 0
        while m < horizon:
            _collect_weights(m, weights, table, readers, shape)
            _adjoint_sample(m, gradients, out, several, readers, shape)
            m = horizon - width if flat and m == width - 1 else m + 1
        inside = (gradients, out, several, readers, shape, region, past_caches)
        if flat:
            _collect_weights(width, weights, table, readers, shape)
            if width == 5:
                _adjoint_inside(5, inside)
            else:
                _adjoint_inside(4, inside)
        for one in range(several[0], several[1]):
            _adjoint_known(gradients, values, one, weights, table, shape, flat)
            _free_ends(out, values, one, shape)
    if past_caches:
        fence()


@functools.lru_cache(maxsize=64)
def _shape(
    horizon: int, dof: int, tables: int, rows: int, columns: int, geometry: tuple[int, ...]
) -> tuple[int, ...]:
    # Its fields have their names again in the kernel: numba takes 3 us to read a named tuple.
    return tuple(Shape(horizon, dof, tables, rows, columns, *geometry))


def apply(
    x: Tensor, conditions: Tensor, weights: Tensor, geometry: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`pullback.trajectory.kernels.stencil._reference.apply` on the CPU."""
    dtype, wanted = weights.dtype, x.dtype
    x, conditions, new = in_memory(x, dtype), in_memory(conditions, dtype), torch.empty_like
    outputs = (new(x), new(x), new(x), new(x))
    levels = tuple([output.data_ptr() for output in outputs])
    given = {"given": x.data_ptr(), "known": conditions.data_ptr(), "levels": levels}
    _run(_forward, x.shape, weights, geometry, given, levels)
    if dtype is not wanted:
        position, velocity, acceleration, jerk = outputs
        return position.to(wanted), velocity.to(wanted), acceleration.to(wanted), jerk.to(wanted)
    return outputs


def apply_adjoint(
    cotangents: tuple[Tensor, Tensor, Tensor, Tensor], weights: Tensor, geometry: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """`pullback.trajectory.kernels.stencil._reference.apply_adjoint` on the CPU."""
    wanted, dtype = cotangents[0].dtype, weights.dtype
    given = [in_memory(cotangent, dtype) for cotangent in cotangents]
    batch, _, dof = given[0].shape
    gradient = torch.empty_like(given[0])
    values = gradient.new_empty(batch, weights.shape[3] - geometry[1], dof)
    written = {"gradient": gradient.data_ptr(), "of_known": values.data_ptr()}
    levels = tuple([cotangent.data_ptr() for cotangent in given])
    _run(
        _adjoint, gradient.shape, weights, geometry, written | {"levels": levels}, written.values()
    )
    if dtype is not wanted:
        return gradient.to(wanted), values.to(wanted)
    return gradient, values


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
