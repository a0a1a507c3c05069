"""`DeterministicEvaluator`: a score by a function."""

from pullback.compat.afnio.autodiff import evaluator
from pullback.compat.afnio.cognitive.modules.module import OperationModule

__all__ = ["DeterministicEvaluator"]


class DeterministicEvaluator(OperationModule):
    """Scores by a function."""

    operation = evaluator.DeterministicEvaluator
