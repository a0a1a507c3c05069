"""`ExactMatchEvaluator`: whether a prediction is its target."""

from pullback.compat.afnio.autodiff import evaluator
from pullback.compat.afnio.cognitive.modules.module import module_of

__all__ = ["ExactMatchEvaluator"]

ExactMatchEvaluator = module_of(evaluator.ExactMatchEvaluator)
