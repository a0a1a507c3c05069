"""Explicit vectors against numpy, for every number of lanes that is left at the end."""

import numpy as np
import pytest

from pullback.internal.kernels._cpu import compile_kernel
from pullback.internal.kernels.vectors._cpu import (
    ROW,
    fence,
    load,
    load_first,
    pointer_at,
    pointer_to,
    splat,
    store,
    store_first,
    store_past_caches,
    widen,
)

GUARD = 32


@compile_kernel(nogil=True)
def combine(weight, xs, ys, outs, size, past_caches):
    x, y, out = pointer_to(xs), pointer_to(ys), pointer_to(outs)
    i = 0
    while i + ROW <= size:
        result = splat(weight) * load(x, i) - load(y, i)
        result += load(x, i)
        if past_caches:
            store_past_caches(out, i, result)
        else:
            store(out, i, result)
        i += ROW
    for begin in range(i, size, ROW):
        left = min(ROW, size - begin)
        given = load(x, begin) if left == ROW else load_first(x, begin, left)
        rest = splat(weight) * given - load_first(y, begin, left)
        store_first(out, begin, rest + load_first(x, begin, left), left)
    fence()


def aligned(size, dtype):
    """Zeros that begin at a multiple of 64 bytes, with a guard behind them."""
    memory = np.zeros(size * dtype().itemsize + GUARD * 8 + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + (size + GUARD) * dtype().itemsize].view(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("past_caches", [False, True])
@pytest.mark.parametrize("size", [*range(1, 36), 1000])
def test_lanes_are_the_elements(dtype, past_caches, size):
    rng = np.random.default_rng(size)
    x, y = rng.standard_normal((2, size)).astype(dtype)
    out = aligned(size, dtype)
    out[:] = 9
    weight = dtype(1.5)
    combine(weight, x, y, out, size, past_caches)
    # No product is fused with a sum: exactly what numpy computes.
    np.testing.assert_array_equal(out[:size], (weight * x - y) + x)
    assert (out[size:] == 9).all()


@compile_kernel(nogil=True)
def copy_first(xs, outs, count):
    x, out = pointer_to(xs), pointer_to(outs)
    store(out, 0, load_first(x, 0, count))


@pytest.mark.parametrize("count", range(9))
def test_lanes_that_are_not_loaded_are_zero(count):
    x, out = np.full(8, np.nan), np.full(8, 7.0)
    x[:count] = np.arange(count)
    copy_first(x, out, count)
    np.testing.assert_array_equal(out, [*range(count), *[0] * (8 - count)])


@compile_kernel(nogil=True)
def double_at(item, source, target, size):
    x, out = pointer_at(source, item), pointer_at(target, item)
    for i in range(size):
        out[i] = x[i] + x[i]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_address_is_read_as_numbers_of_the_type_given(dtype):
    x, out = np.arange(5, dtype=dtype), np.full(7, 9, dtype)
    double_at(dtype(0), x.ctypes.data, out.ctypes.data, 5)
    np.testing.assert_array_equal(out, [0, 2, 4, 6, 8, 9, 9])


@compile_kernel(nogil=True)
def double_wide(xs, outs, count):
    x, out = pointer_to(xs), pointer_to(outs)
    if count < 8:
        values = widen(load_first(x, 0, count))
        store_first(out, 0, values + values, count)
    else:
        values = widen(load(x, 0))
        store(out, 0, values + values)


@pytest.mark.parametrize("count", range(9))
@pytest.mark.parametrize("given", [np.float32, np.float64])
@pytest.mark.parametrize("kept", [np.float32, np.float64])
def test_wide_lanes_are_float64_between_any_two(given, kept, count):
    x, out = np.full(8, np.nan, given), np.full(8, 7.0, kept)
    x[:count] = np.random.default_rng(count).standard_normal(count)
    double_wide(x, out, count)
    np.testing.assert_array_equal(out[:count], (2 * x[:count].astype(np.float64)).astype(kept))
    assert (out[count:] == 7).all()
