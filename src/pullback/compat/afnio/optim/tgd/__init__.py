"""Textual gradient descent."""

from pullback.compat.afnio.optim.tgd.tgd import TGD

__all__ = ["TGD"]
