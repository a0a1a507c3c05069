"""`LMJudgeEvaluator`: a score by a model."""

from pullback.compat.afnio.autodiff import evaluator
from pullback.compat.afnio.cognitive.modules.module import OperationModule

__all__ = ["LMJudgeEvaluator"]


class LMJudgeEvaluator(OperationModule):
    """A model scores, and explains."""

    operation = evaluator.LMJudgeEvaluator
