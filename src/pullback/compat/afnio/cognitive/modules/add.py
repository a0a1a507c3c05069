"""`Add`, at its published path."""

from pullback.compat.afnio.cognitive.modules import Add

__all__ = ["Add"]
