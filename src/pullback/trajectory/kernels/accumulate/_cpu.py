"""The chain of sums on the CPU, compiled by numba: one pass through time each way."""

import functools

from torch import Tensor

from pullback.internal.kernels._cpu import compile_kernel
from pullback.internal.kernels._threads import count_threads, in_memory, run_slices

__all__ = ["accumulate", "accumulate_adjoint"]

_compile = compile_kernel(nogil=True)


@_compile
def _forward(control, initial, steps, position, velocity, acceleration, jerk, first, last):
    _, horizon, dof = control.shape
    order, tables, rows = initial.shape[1], steps.shape[0], steps.shape[1]
    for b in range(first, last):
        table, p, v, a, j = (
            steps[b if tables > 1 else 0],
            position[b],
            velocity[b],
            acceleration[b],
            jerk[b],
        )
        p[0] = initial[b, 0]
        if order > 1:
            v[0] = initial[b, 1]
        if order > 2:
            a[0] = initial[b, 2]
        for h in range(horizon):
            e = table[h if rows > 1 else 0]
            e1, e2, e3 = e[0], e[1], e[2]
            u = control[b, h]
            for d in range(dof):
                if order == 1:
                    v[h, d] = u[d]
                    p[h + 1, d] = p[h, d] + e1 * u[d]
                elif order == 2:
                    a[h, d] = u[d]
                    p[h + 1, d] = p[h, d] + (e1 * v[h, d] + e2 * u[d])
                    v[h + 1, d] = v[h, d] + e1 * u[d]
                else:
                    j[h, d] = u[d]
                    p[h + 1, d] = p[h, d] + ((e1 * v[h, d] + e2 * a[h, d]) + e3 * u[d])
                    v[h + 1, d] = v[h, d] + (e1 * a[h, d] + e2 * u[d])
                    a[h + 1, d] = a[h, d] + e1 * u[d]
        # The control is held over each step, and its last value at the last sample.
        held = v if order == 1 else (a if order == 2 else j)
        held[horizon] = control[b, horizon - 1]
        if order < 3:
            j[:] = 0
        if order < 2:
            a[:] = 0


@_compile
def _adjoint(position, velocity, acceleration, jerk, steps, control, initial, first, last):
    """The transpose of `_forward`, from the last sample to the first."""
    _, samples, dof = position.shape
    order, tables, rows = initial.shape[1], steps.shape[0], steps.shape[1]
    for b in range(first, last):
        table, c = steps[b if tables > 1 else 0], initial[b]
        held = velocity[b] if order == 1 else (acceleration[b] if order == 2 else jerk[b])
        c[0] = position[b, samples - 1]
        if order > 1:
            c[1] = velocity[b, samples - 1]
        if order > 2:
            c[2] = acceleration[b, samples - 1]
        for h in range(samples - 2, -1, -1):
            e = table[h if rows > 1 else 0]
            e1, e2, e3 = e[0], e[1], e[2]
            for d in range(dof):
                u = held[h, d]
                if h == samples - 2:
                    u += held[samples - 1, d]
                if order == 1:
                    u += e1 * c[0, d]
                elif order == 2:
                    u += e2 * c[0, d] + e1 * c[1, d]
                else:
                    u += (e3 * c[0, d] + e2 * c[1, d]) + e1 * c[2, d]
                    c[2, d] += acceleration[b, h, d] + (e1 * c[1, d] + e2 * c[0, d])
                if order > 1:
                    c[1, d] += velocity[b, h, d] + e1 * c[0, d]
                c[0, d] += position[b, h, d]
                control[b, h, d] = u


def accumulate(
    control: Tensor, initial: Tensor, steps: Tensor, order: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`pullback.trajectory.kernels.accumulate._reference.accumulate` on the CPU."""
    batch, horizon, dof = control.shape
    shape, new = (batch, horizon + 1, dof), steps.new_empty
    outputs = (new(shape), new(shape), new(shape), new(shape))
    if control.numel() > 0:
        inputs = [in_memory(part, steps.dtype).numpy() for part in (control, initial, steps)]
        kernel = functools.partial(_forward, *inputs, *(output.numpy() for output in outputs))
        run_slices(kernel, batch, count_threads(batch, control.numel()))
    if control.dtype != steps.dtype:
        position, velocity, acceleration, jerk = (part.to(control.dtype) for part in outputs)
        return position, velocity, acceleration, jerk
    return outputs


def accumulate_adjoint(
    cotangents: tuple[Tensor, Tensor, Tensor, Tensor], steps: Tensor, order: int
) -> tuple[Tensor, Tensor]:
    """`pullback.trajectory.kernels.accumulate._reference.accumulate_adjoint` on the CPU."""
    batch, samples, dof = cotangents[0].shape
    control = steps.new_empty(batch, samples - 1, dof)
    initial = steps.new_empty(batch, order, dof)
    if control.numel() > 0:
        inputs = [in_memory(part, steps.dtype).numpy() for part in (*cotangents, steps)]
        kernel = functools.partial(_adjoint, *inputs, control.numpy(), initial.numpy())
        run_slices(kernel, batch, count_threads(batch, control.numel()))
    return control.to(cotangents[0].dtype), initial.to(cotangents[0].dtype)
