"""Dtypes that pack two numbers in one element: torch has them since 2.8, without arithmetic."""

import torch

__all__ = ["PACKED"]

# Once: asking a dtype for its name at each call would be felt.
PACKED: frozenset[torch.dtype] = frozenset(
    dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype) and "x2" in str(dtype)
)
