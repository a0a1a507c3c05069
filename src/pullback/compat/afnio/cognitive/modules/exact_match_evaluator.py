"""`ExactMatchEvaluator`, at its published path."""

from pullback.compat.afnio.cognitive.modules import ExactMatchEvaluator

__all__ = ["ExactMatchEvaluator"]
