"""The scale of a tensor as unit_scaling has it: the unbiased standard deviation.

A complex tensor has that of both parts together.
"""

import math

import torch
from torch import Tensor

__all__ = ["std_of", "std_tensor"]


def std_of(tensor: Tensor) -> float:
    """Return the unbiased standard deviation, in float32 or wider; NaN of fewer than two values."""
    return float(std_tensor(tensor))


def std_tensor(tensor: Tensor) -> Tensor:
    """Return `std_of` as a tensor without a shape, where the values lie: nothing is waited for."""
    values = tensor.detach()
    if values.dtype.itemsize < 4 or values.dtype == torch.complex32:
        values = values.to(torch.complex64 if values.is_complex() else torch.float32)
    if values.numel() < 2:  # torch warns here, and gives NaN as well
        return torch.full((), math.nan, device=values.device)
    return values.std()
