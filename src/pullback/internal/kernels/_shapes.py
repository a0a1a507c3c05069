"""Shapes of batches."""

import torch

from pullback.internal.kernels._backend import is_plain

__all__ = ["broadcast_shapes"]


def broadcast_shapes(*shapes: torch.Size) -> torch.Size:
    """`torch.broadcast_shapes`, whose first call imports symbolic algebra, for half a second.

    Where nothing watches, tensors without memory are broadcast instead.

    Raises:
        RuntimeError: the shapes cannot be broadcast.
    """
    if not is_plain():
        return torch.broadcast_shapes(*shapes)
    return torch.broadcast_tensors(*(torch.empty(s, device="meta") for s in shapes))[0].shape
