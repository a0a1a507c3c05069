"""`ExactMatchEvaluator`: whether a prediction is its target."""

from pullback.compat.afnio.autodiff import evaluator
from pullback.compat.afnio.cognitive.modules.module import OperationModule

__all__ = ["ExactMatchEvaluator"]


class ExactMatchEvaluator(OperationModule):
    """Scores 1 where a prediction is its target."""

    operation = evaluator.ExactMatchEvaluator
