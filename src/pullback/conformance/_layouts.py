"""The same numbers in other memory."""

import torch

__all__ = ["broadcast", "expanded", "offset", "strided", "transposed"]


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT if x.ndim >= 2 else strided(x)


def strided(x: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros((*x.shape, 2), dtype=x.dtype, device=x.device)
    wide[..., 1] = x
    return wide[..., 1]


def offset(x: torch.Tensor) -> torch.Tensor:
    store = torch.zeros(x.numel() + 1, dtype=x.dtype, device=x.device)
    store[1:] = x.reshape(-1)
    return store[1:].view(x.shape)


def expanded(x: torch.Tensor) -> torch.Tensor:
    """Every row along the first dimension the same memory; square matrices keep their structure."""
    square = x.ndim >= 2 and x.shape[-1] == x.shape[-2]
    return x[:1].expand(x.shape) if x.ndim and x.shape[0] > 1 and not square else x


def broadcast(x: torch.Tensor) -> torch.Tensor:
    """Every entry the memory of the first, as the cotangent of a sum has it."""
    return x.reshape(-1)[:1].expand(x.numel()).view(x.shape) if x.numel() else x
