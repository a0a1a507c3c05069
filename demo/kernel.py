"""A kernel that agrees with its reference at every random input of one size, and is wrong."""

import torch


def plain(x: torch.Tensor) -> torch.Tensor:
    """The softmax of the last dimension."""
    return torch.softmax(x, -1)


def make() -> tuple[torch.Tensor]:
    """Inputs as a benchmark makes them."""
    return (torch.randn(16, 64),)


def kernel(x: torch.Tensor) -> torch.Tensor:
    """The softmax of the first 64 columns, without the largest score taken off."""
    e = x[..., :64].exp()
    y = torch.zeros_like(x)
    y[..., :64] = e / e.sum(-1, keepdim=True)
    return y
