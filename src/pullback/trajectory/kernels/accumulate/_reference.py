"""The chain of sums in plain torch: the oracle, for any device and dtype, and its coefficients.

States ``z_0 .. z_(order - 1)`` (position first) follow a control ``u = z_order`` that is held over
each step, ``z_i[h + 1] = z_i[h] + sum_k e_k[h] z_(i + k)[h]``, with coefficients of

    exact                  e_k = dt^k / k!   the Taylor series, which ends: the control is constant
    semi_implicit_euler    e_k = dt^k        each state is advanced by the new one above it
    euler                  e_1 = dt          each state is advanced by the old one above it

The highest state is a running sum of the control, the next one a running sum of that: no loop over
time is needed, and torch differentiates it.
"""

from typing import Literal

import torch
from torch import Tensor

from pullback.internal.kernels._backend import keep_results

__all__ = ["METHODS", "Method", "apply", "sizes", "step_table", "uniform_table", "weights_adjoint"]

Method = Literal["exact", "semi_implicit_euler", "euler"]

METHODS: tuple[Method, ...] = ("exact", "semi_implicit_euler", "euler")

_FACTORS: dict[str, tuple[float, float, float]] = {
    "exact": (1.0, 1 / 2, 1 / 6),
    "semi_implicit_euler": (1.0, 1.0, 1.0),
    "euler": (1.0, 0.0, 0.0),
}


def step_table(method: Method, order: int, dt: Tensor) -> Tensor:
    """Return ``e_1 .. e_order`` in float64, ``[..., order]``, for steps ``[...]`` in seconds."""
    dt = dt.to(torch.float64)
    powers = torch.stack([dt, dt * dt, dt * dt * dt][:order], dim=-1)
    factors = torch.tensor(_FACTORS[method][:order], dtype=torch.float64, device=dt.device)
    return powers * factors


@keep_results
def uniform_table(
    method: Method, order: int, dt: float, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """`step_table` for steps that all take one number of seconds, ``[1, 1, order]``, rounded."""
    seconds = torch.full((1, 1), dt, dtype=torch.float64, device=device)
    return step_table(method, order, seconds).to(dtype)


def _total(parts: list[Tensor]) -> Tensor:
    return sum(parts[1:], parts[0])


def sizes(_steps: Tensor, code: tuple[int, ...]) -> tuple[int, int]:
    """How many samples there are more than controls, and how many initial states."""
    return 1, code[0]


def apply(
    control: Tensor, initial: Tensor, steps: Tensor, code: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return position, velocity, acceleration and jerk, ``[batch, steps + 1, dof]``.

    The control's own order repeats its last value at the last sample; orders above are zero. Of
    ``control [batch, steps, dof]``, of ``initial [batch, order, dof]`` states at sample 0, position
    first, and of coefficients e_k, ``steps [1 or batch, steps or 1, order]``.
    """
    (order,), dtype = code, steps.dtype
    held = control.to(dtype)
    levels = [torch.cat([held, held[:, -1:]], dim=1)]
    for state in reversed(range(order)):
        increments = _total([steps[:, :, k, None] * z[:, :-1] for k, z in enumerate(levels)])
        first = initial[:, state, None].to(dtype)
        levels.insert(0, torch.cat([first, increments], dim=1).cumsum(1))
    none = torch.zeros((), dtype=torch.bool, device=control.device)
    while len(levels) < 4:  # of zeros that are followed as the others are
        levels.append(torch.where(none, levels[0], 0.0))
    position, velocity, acceleration, jerk = (level.to(control.dtype) for level in levels)
    return position, velocity, acceleration, jerk


def _costates(cotangents: tuple[Tensor, ...], steps: Tensor, order: int) -> list[Tensor]:
    """Gradients of the states at each sample, position first, in the dtype of the steps."""
    costates: list[Tensor] = []
    for state in range(order):
        own = cotangents[state].to(steps.dtype)
        if state:
            later = [
                steps[:, :, state - lower - 1, None] * costate[:, 1:]
                for lower, costate in enumerate(costates)
            ]
            own = own + torch.nn.functional.pad(_total(later), (0, 0, 0, 1))
        costates.append(own.flip(1).cumsum(1).flip(1))
    return costates


def weights_adjoint(
    cotangents: tuple[Tensor, ...],
    control: Tensor,
    initial: Tensor,
    steps: Tensor,
    code: tuple[int, ...],
) -> Tensor:
    """Return the gradient of the coefficients, in their shape, in differentiable operations."""
    (order,) = code
    levels = apply(control.to(steps.dtype), initial, steps, code)
    costates = _costates(cotangents, steps, order)
    gradients = [
        _total(
            [
                (costates[state][:, 1:] * levels[state + k][:, :-1]).sum(-1)
                for state in range(order - k + 1)
            ]
        )
        for k in range(1, order + 1)
    ]
    gradient = torch.stack(gradients, dim=-1)
    gradient = gradient.sum(0, keepdim=True) if steps.shape[0] == 1 else gradient
    return gradient.sum(1, keepdim=True) if steps.shape[1] == 1 else gradient
