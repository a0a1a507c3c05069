"""Makers of arguments, in float32: what kernels are written for."""

import torch

from benchmarks.wild._case import randn, uniform

__all__ = ["labels", "log_decay", "log_softmax", "r", "softmax", "u", "unit"]


def r(g: torch.Generator, *shape: int, grad: bool = True) -> torch.Tensor:
    """A normal tensor."""
    return randn(g, *shape, dtype=torch.float32, grad=grad)


def u(g: torch.Generator, low: float, high: float, *shape: int, grad: bool = True) -> torch.Tensor:
    """A uniform tensor."""
    return uniform(g, low, high, *shape, dtype=torch.float32, grad=grad)


def labels(g: torch.Generator, many: int, *shape: int) -> torch.Tensor:
    """Class indices."""
    return torch.randint(many, shape, generator=g)


def log_softmax(g: torch.Generator, *shape: int, grad: bool = True) -> torch.Tensor:
    """Log-probabilities along the last dimension."""
    return r(g, *shape, grad=False).log_softmax(-1).requires_grad_(grad)


def softmax(g: torch.Generator, *shape: int, grad: bool = True) -> torch.Tensor:
    """Probabilities along the last dimension."""
    return r(g, *shape, grad=False).softmax(-1).requires_grad_(grad)


def unit(g: torch.Generator, *shape: int) -> torch.Tensor:
    """Vectors of length one along the last dimension."""
    return torch.nn.functional.normalize(r(g, *shape, grad=False), dim=-1).requires_grad_()


def log_decay(g: torch.Generator, *shape: int) -> torch.Tensor:
    """Logarithms of a gate between a half and one."""
    return u(g, -0.7, -0.05, *shape)
