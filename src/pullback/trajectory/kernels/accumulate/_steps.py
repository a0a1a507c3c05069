"""The coefficients of one step of time, as a differentiable function of dt.

Every method here advances state ``i`` by ``z_i' = z_i + sum_k e_k z_(i + k)``, the control being
the state above the highest, with

    exact                  e_k = dt^k / k!   the Taylor series, which ends: the control is constant
    semi_implicit_euler    e_k = dt^k        each state is advanced by the new one above it
    euler                  e_1 = dt          each state is advanced by the old one above it
"""

from typing import Literal

import torch
from torch import Tensor

from pullback.internal.kernels._backend import keep_results

__all__ = ["METHODS", "Method", "step_table", "uniform_table"]

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
