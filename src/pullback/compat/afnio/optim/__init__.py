"""Optimizers."""

from pullback.compat.afnio.optim.optimizer import Optimizer
from pullback.compat.afnio.optim.tgd import TGD

__all__ = ["TGD", "Optimizer"]
