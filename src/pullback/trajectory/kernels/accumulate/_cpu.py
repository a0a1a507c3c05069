"""The chain of sums on the CPU: one pass forwards through time, one backwards.

The joints of a trajectory are the lanes of a vector, and its states stay in registers from one
sample to the next: memory is read once and written once. They are float64 there whatever is stored:
a running sum of a hundred thousand float32 numbers has lost three of its seven digits.
"""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from pullback.internal.kernels._cpu import compile_kernel, compile_part
from pullback.internal.kernels._threads import ZEROS, count_threads, in_memory, run_slices
from pullback.internal.kernels.vectors._cpu import (
    ROW,
    load,
    load_first,
    pointer_at,
    pointers_at,
    splat,
    store,
    store_first,
    widen,
)

__all__ = ["apply", "apply_adjoint"]

_kernel, _part = compile_kernel(nogil=True), compile_part(nogil=True)


class Sizes(NamedTuple):
    """Of a problem: how many steps, joints, and states above the position."""

    horizon: int
    dof: int
    order: int


@_part
def _coefficients(steps, at, order):
    # Those of a method up to the order; zero further on.
    zero = splat(0.0)
    return (
        splat(np.float64(steps[at])),
        splat(np.float64(steps[at + 1])) if order > 1 else zero,
        splat(np.float64(steps[at + 2])) if order > 2 else zero,
    )


@_part
def _put(level, at, vector, count, end):
    # What a whole vector writes beyond its row, the rows that follow write again.
    if at + ROW <= end:
        store(level, at, vector)
    else:
        store_first(level, at, vector, count)


@_part
def _take(level, at, count, end):
    # What a whole vector reads beyond its row goes nowhere.
    return widen(load(level, at) if at + ROW <= end else load_first(level, at, count))


@_part
def _forward_lanes(control, initial, steps, levels, at, place, stride, count, sizes):
    """Integrate as many joints as a vector holds.

    ``at`` is where they begin in (control, initial, levels), ``place`` where the coefficients do,
    ``stride`` how far the next step's are.
    """
    horizon, dof, order = sizes.horizon, sizes.dof, sizes.order
    position, velocity, acceleration, jerk = levels
    # Beside a block of joints that comes before it, the last one writes its own alone.
    end = at[2] + horizon * dof + count if count == min(dof, ROW) else 0
    zero = splat(0.0)
    z0 = widen(load_first(initial, at[1], count))
    z1 = widen(load_first(initial, at[1] + dof, count)) if order > 1 else zero
    z2 = widen(load_first(initial, at[1] + 2 * dof, count)) if order > 2 else zero
    for h in range(horizon + 1):
        # The control is held over each step, and its last value at the last sample.
        u = widen(load_first(control, at[0] + min(h, horizon - 1) * dof, count))
        i, e = at[2] + h * dof, place + min(h, horizon - 1) * stride
        e1, e2, e3 = _coefficients(steps, e, order)
        # The control is the state of its order; of those above there is nothing.
        z1, z2 = u if order == 1 else z1, u if order == 2 else z2
        z3 = u if order == 3 else zero
        _put(position, i, z0, count, end)
        _put(velocity, i, z1, count, end)
        _put(acceleration, i, z2, count, end)
        _put(jerk, i, z3, count, end)
        z0 += (e1 * z1 + e2 * z2) + e3 * z3
        z1 += e1 * z2 + e2 * z3
        z2 += e1 * z3


@_part
def _adjoint_lanes(control, initial, steps, cotangents, at, place, stride, count, sizes):
    """The transpose of `_forward_lanes`, from the last sample to the first."""
    horizon, dof, order = sizes.horizon, sizes.dof, sizes.order
    g0, g1, g2, g3 = cotangents
    of_control = g1 if order == 1 else (g2 if order == 2 else g3)
    i = at[2] + horizon * dof
    end = i + count
    late = _take(of_control, i, count, end)
    c0, c1, c2 = _take(g0, i, count, end), _take(g1, i, count, end), _take(g2, i, count, end)
    for back in range(horizon):
        h = horizon - 1 - back
        i, e = at[2] + h * dof, place + h * stride
        e1, e2, e3 = _coefficients(steps, e, order)
        # What each level asks for here, its own order's of the control, those below of states.
        d1 = _take(g1, i, count, end) + e1 * c0
        u = d1
        if order > 1:
            d2 = _take(g2, i, count, end) + (e2 * c0 + e1 * c1)
            u = d2
            if order > 2:
                u = _take(g3, i, count, end) + ((e3 * c0 + e2 * c1) + e1 * c2)
                c2 += d2
            c1 += d1
        c0 += _take(g0, i, count, end)
        store_first(control, at[0] + h * dof, u + late if back == 0 else u, count)
    store_first(initial, at[1], c0, count)
    if order > 1:
        store_first(initial, at[1] + dof, c1, count)
    if order > 2:
        store_first(initial, at[1] + 2 * dof, c2, count)


@_kernel
def _run(zero, control, initial, steps, levels, sizes, tables, rows, forward, first, last):
    controls, states = pointer_at(control, zero), pointer_at(initial, zero)
    coefficients = pointer_at(steps, zero)
    outputs = pointers_at(levels, zero)
    sizes = Sizes(*sizes)
    horizon, dof, order = sizes.horizon, sizes.dof, sizes.order
    stride = order if rows > 1 else 0
    for b in range(first, last):
        place = (b if tables > 1 else 0) * rows * order
        for d in range(0, dof, ROW):
            at = (b * horizon * dof + d, b * order * dof + d, b * (horizon + 1) * dof + d)
            count = min(ROW, dof - d)
            given = (controls, states, coefficients, outputs, at, place, stride, count, sizes)
            if forward:
                _forward_lanes(*given)
            else:
                _adjoint_lanes(*given)


def apply(
    control: Tensor, initial: Tensor, steps: Tensor, code: tuple[int, ...]
) -> tuple[Tensor, ...]:
    """`pullback.trajectory.kernels.accumulate._reference.apply` on the CPU."""
    (batch, horizon, dof), (order,) = control.shape, code
    dtype, wanted = steps.dtype, control.dtype
    levels = [steps.new_empty(batch, horizon + 1, dof) for _ in range(4)]
    _run_over_batch(in_memory(control, dtype), in_memory(initial, dtype), steps, levels, order)
    return tuple(levels if dtype is wanted else [level.to(wanted) for level in levels])


def apply_adjoint(
    cotangents: tuple[Tensor, Tensor, Tensor, Tensor], steps: Tensor, code: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """`pullback.trajectory.kernels.accumulate._reference.apply_adjoint` on the CPU."""
    (batch, samples, dof), (order,) = cotangents[0].shape, code
    dtype, wanted = steps.dtype, cotangents[0].dtype
    control = steps.new_empty(batch, samples - 1, dof)
    initial = steps.new_empty(batch, order, dof)
    levels = [in_memory(cotangent, dtype) for cotangent in cotangents]
    _run_over_batch(control, initial, steps, levels, order, forward=False)
    return control.to(wanted), initial.to(wanted)


def _run_over_batch(
    control: Tensor,
    initial: Tensor,
    steps: Tensor,
    levels: list[Tensor],
    order: int,
    *,
    forward: bool = True,
) -> None:
    """Run the kernel over all trajectories: control and initial states, and the four levels."""
    batch, horizon, dof = control.shape
    elements = batch * horizon * dof
    if not elements:
        return
    steps = in_memory(steps, steps.dtype)
    arguments = {
        "zero": ZEROS[steps.dtype],
        "control": control.data_ptr(),
        "initial": initial.data_ptr(),
        "steps": steps.data_ptr(),
        "levels": tuple([level.data_ptr() for level in levels]),
        "sizes": tuple(Sizes(horizon=horizon, dof=dof, order=order)),
        "tables": steps.shape[0],
        "rows": steps.shape[1],
        "forward": forward,
    }
    run_slices(_run, arguments, batch, count_threads(batch, elements))
