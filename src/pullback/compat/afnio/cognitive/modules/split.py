"""`Split`, at its published path."""

from pullback.compat.afnio.cognitive.modules import Split

__all__ = ["Split"]
