"""The evaluators, each with an ``apply``."""

from pullback.compat.afnio.cognitive.functional import (
    as_function,
    deterministic_evaluator,
    exact_match_evaluator,
    lm_judge_evaluator,
)

__all__ = ["DeterministicEvaluator", "ExactMatchEvaluator", "LMJudgeEvaluator"]

DeterministicEvaluator = as_function(deterministic_evaluator)
ExactMatchEvaluator = as_function(exact_match_evaluator)
LMJudgeEvaluator = as_function(lm_judge_evaluator)
