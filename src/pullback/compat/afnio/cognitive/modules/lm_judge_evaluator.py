"""`LMJudgeEvaluator`: a score by a model."""

from pullback.compat.afnio.autodiff import evaluator
from pullback.compat.afnio.cognitive.modules.module import module_of

__all__ = ["LMJudgeEvaluator"]

LMJudgeEvaluator = module_of(evaluator.LMJudgeEvaluator)
