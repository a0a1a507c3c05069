"""The scale of a tensor as unit_scaling has it: the unbiased standard deviation.

A complex tensor has that of both parts together.
"""

import math

import torch
from torch import Tensor

from pullback.gradients._factor import widen

__all__ = ["std_of", "std_tensor"]


def std_of(tensor: Tensor) -> float:
    """Return the unbiased standard deviation, in float32 or wider; NaN of fewer than two values."""
    return float(std_tensor(tensor))


def std_tensor(tensor: Tensor) -> Tensor:
    """Return `std_of` as a tensor without a shape, where the values lie: nothing is waited for."""
    values = widen(tensor.detach())
    if values.numel() < 2:  # torch warns here, and gives NaN as well
        return torch.full((), math.nan, device=values.device)
    return values.std()
