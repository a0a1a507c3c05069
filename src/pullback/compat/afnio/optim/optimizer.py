"""`Optimizer`: what changes parameters."""

from pullback.text import optim

__all__ = ["Optimizer"]


class Optimizer(optim.Optimizer):
    """Changes parameters: see `pullback.text.optim.Optimizer`."""

    clear_grad = optim.Optimizer.zero_grad
