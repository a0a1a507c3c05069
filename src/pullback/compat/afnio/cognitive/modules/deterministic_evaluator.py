"""`DeterministicEvaluator`, at its published path."""

from pullback.compat.afnio.cognitive.modules import DeterministicEvaluator

__all__ = ["DeterministicEvaluator"]
