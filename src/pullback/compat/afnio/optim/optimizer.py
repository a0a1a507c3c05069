"""`Optimizer`: what changes parameters."""

from pullback.text.optim import Optimizer

__all__ = ["Optimizer"]
