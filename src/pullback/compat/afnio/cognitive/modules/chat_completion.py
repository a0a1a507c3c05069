"""`ChatCompletion`, at its published path."""

from pullback.compat.afnio.cognitive.modules import ChatCompletion

__all__ = ["ChatCompletion"]
