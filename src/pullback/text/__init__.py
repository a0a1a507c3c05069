"""Language-model operations on the tape, and the models that they ask."""

from pullback.text import lm

__all__ = ["lm"]
