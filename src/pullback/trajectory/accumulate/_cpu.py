"""The chain of sums on the CPU: one pass forwards through time, one backwards."""

import numpy as np
import torch
from numba import carray
from torch import Tensor

from pullback.internal._cpu import Entry, compile_kernel, take_slice
from pullback.internal.vectors import pointer_at
from pullback.trajectory._threads import in_memory, run_job

__all__ = ["accumulate", "accumulate_adjoint"]

_compile = compile_kernel(nogil=True)


@_compile
def _forward(control, initial, steps, levels, order, dof, first, last):
    horizon = control.shape[1] // dof
    for b in range(first, last):
        t = b if steps.shape[0] > 1 else 0
        for state in range(order):
            levels[state][b, :dof] = initial[b, state * dof : (state + 1) * dof]
        for level in range(order + 1, 4):
            levels[level][b, :] = 0
        levels[order][b, : horizon * dof] = control[b]
        levels[order][b, horizon * dof :] = control[b, (horizon - 1) * dof :]
        for h in range(horizon):
            row = steps[t, h if steps.shape[1] > 1 else 0]
            for state in range(order):
                target = levels[state][b]
                for i in range(h * dof, (h + 1) * dof):
                    total = target[i]
                    for k in range(1, order - state + 1):
                        total += row[k - 1] * levels[state + k][b, i]
                    target[i + dof] = total


@_compile
def _adjoint(cotangents, steps, control, initial, order, dof, first, last):
    horizon = control.shape[1] // dof
    for b in range(first, last):
        t = b if steps.shape[0] > 1 else 0
        costate = initial[b]
        end = horizon * dof
        for state in range(order):
            costate[state * dof : (state + 1) * dof] = cotangents[state][b, end : end + dof]
        control[b] = cotangents[order][b, :end]
        control[b, end - dof :] += cotangents[order][b, end:]
        for h in range(horizon - 1, -1, -1):
            row = steps[t, h if steps.shape[1] > 1 else 0]
            for d in range(dof):
                i = h * dof + d
                total = control[b, i]
                for state in range(order):
                    total += row[order - state - 1] * costate[state * dof + d]
                control[b, i] = total
                # From the highest down: each needs the old values of those below it.
                for state in range(order - 1, -1, -1):
                    total = costate[state * dof + d] + cotangents[state][b, i]
                    for lower in range(state):
                        total += row[state - lower - 1] * costate[lower * dof + d]
                    costate[state * dof + d] = total


@_compile
def _read_job(job, zero):
    batch, horizon, dof, order = job[2], job[3], job[4], job[5]
    control = carray(pointer_at(zero, job[8]), (batch, horizon * dof))
    initial = carray(pointer_at(zero, job[9]), (batch, order * dof))
    steps = carray(pointer_at(zero, job[10]), (job[6], job[7], 3))
    samples = (batch, (horizon + 1) * dof)
    levels = (
        carray(pointer_at(zero, job[11]), samples),
        carray(pointer_at(zero, job[12]), samples),
        carray(pointer_at(zero, job[13]), samples),
        carray(pointer_at(zero, job[14]), samples),
    )
    return control, initial, steps, levels, order, dof


@_compile
def _run_forward(job, zero):
    control, initial, steps, levels, order, dof = _read_job(job, zero)
    number, first, last = take_slice(job)
    while number >= 0:
        _forward(control, initial, steps, levels, order, dof, first, last)
        number, first, last = take_slice(job)


@_compile
def _run_adjoint(job, zero):
    control, initial, steps, cotangents, order, dof = _read_job(job, zero)
    number, first, last = take_slice(job)
    while number >= 0:
        _adjoint(cotangents, steps, control, initial, order, dof, first, last)
        number, first, last = take_slice(job)


def _forward_float32(job):
    _run_forward(job, np.float32(0))


def _forward_float64(job):
    _run_forward(job, np.float64(0))


def _adjoint_float32(job):
    _run_adjoint(job, np.float32(0))


def _adjoint_float64(job):
    _run_adjoint(job, np.float64(0))


_FORWARD = {torch.float32: Entry(_forward_float32), torch.float64: Entry(_forward_float64)}
_ADJOINT = {torch.float32: Entry(_adjoint_float32), torch.float64: Entry(_adjoint_float64)}


def accumulate(
    control: Tensor, initial: Tensor, steps: Tensor, order: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`pullback.trajectory.accumulate._reference.accumulate` on the CPU."""
    batch, horizon, dof = control.shape
    shape = (batch, horizon + 1, dof)
    outputs = tuple(torch.empty(shape, dtype=steps.dtype) for _ in range(4))
    if control.numel() > 0:
        inputs = (in_memory(control, steps.dtype), in_memory(initial, steps.dtype))
        _run(_FORWARD, inputs, steps, outputs, order)
    position, velocity, acceleration, jerk = (output.to(control.dtype) for output in outputs)
    return position, velocity, acceleration, jerk


def accumulate_adjoint(
    cotangents: tuple[Tensor, Tensor, Tensor, Tensor], steps: Tensor, order: int
) -> tuple[Tensor, Tensor]:
    """`pullback.trajectory.accumulate._reference.accumulate_adjoint` on the CPU."""
    batch, samples, dof = cotangents[0].shape
    control = torch.empty(batch, samples - 1, dof, dtype=steps.dtype)
    initial = torch.empty(batch, order, dof, dtype=steps.dtype)
    if control.numel() > 0:
        levels = tuple(in_memory(cotangent, steps.dtype) for cotangent in cotangents)
        _run(_ADJOINT, (control, initial), steps, levels, order)
    return control.to(cotangents[0].dtype), initial.to(cotangents[0].dtype)


def _run(
    kernels: dict[torch.dtype, Entry],
    ends: tuple[Tensor, Tensor],
    steps: Tensor,
    levels: tuple[Tensor, ...],
    order: int,
) -> None:
    """Run a kernel over all trajectories: control and initial states, and the four levels."""
    table = in_memory(steps, steps.dtype)
    numbers = [*ends[0].shape[1:], order, *table.shape[:2]]
    numbers += [tensor.data_ptr() for tensor in (*ends, table, *levels)]
    run_job(kernels[steps.dtype], ends[0].shape[0], ends[0].numel(), numbers)
