"""`Sum`, at its published path."""

from pullback.compat.afnio.cognitive.modules import Sum

__all__ = ["Sum"]
