"""`LMJudgeEvaluator`, at its published path."""

from pullback.compat.afnio.cognitive.modules import LMJudgeEvaluator

__all__ = ["LMJudgeEvaluator"]
