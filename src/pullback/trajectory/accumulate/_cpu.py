"""The chain of sums on the CPU: one pass forwards through time, one backwards."""

import numba
import numpy as np
import torch
from torch import Tensor

from pullback.trajectory._threads import run_in_slices

__all__ = ["accumulate", "accumulate_adjoint"]

_compile = numba.njit(cache=True, nogil=True, error_model="numpy")


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


def _flat(tensor: Tensor, dtype: torch.dtype) -> np.ndarray:
    size = tensor.shape[1] * tensor.shape[2]
    return tensor.detach().to(dtype).contiguous().view(tensor.shape[0], size).numpy()


def accumulate(
    control: Tensor, initial: Tensor, steps: Tensor, order: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`pullback.trajectory.accumulate._reference.accumulate` on the CPU."""
    batch, horizon, dof = control.shape
    shape = (batch, horizon + 1, dof)
    outputs = tuple(torch.empty(shape, dtype=steps.dtype) for _ in range(4))
    if control.numel() > 0:
        inputs = (_flat(control, steps.dtype), _flat(initial, steps.dtype))
        table = steps.detach().contiguous().numpy()
        levels = tuple(_flat(output, steps.dtype) for output in outputs)

        def run(first: int, last: int) -> None:
            _forward(*inputs, table, levels, order, dof, first, last)

        run_in_slices(run, batch, control.numel())
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
        lines = tuple(_flat(cotangent, steps.dtype) for cotangent in cotangents)
        table = steps.detach().contiguous().numpy()
        outputs = (_flat(control, steps.dtype), _flat(initial, steps.dtype))

        def run(first: int, last: int) -> None:
            _adjoint(lines, table, *outputs, order, dof, first, last)

        run_in_slices(run, batch, control.numel())
    return control.to(cotangents[0].dtype), initial.to(cotangents[0].dtype)
