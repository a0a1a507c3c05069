"""The operations as functions."""

from pullback.compat.afnio.autodiff.basic_ops import Add, Split, Sum
from pullback.compat.afnio.autodiff.evaluator import (
    DeterministicEvaluator,
    ExactMatchEvaluator,
    LMJudgeEvaluator,
)
from pullback.compat.afnio.autodiff.lm_ops import ChatCompletion

__all__ = [
    "add",
    "chat_completion",
    "deterministic_evaluator",
    "exact_match_evaluator",
    "lm_judge_evaluator",
    "split",
    "sum",
]

add, split, sum = Add.apply, Split.apply, Sum.apply
chat_completion = ChatCompletion.apply
deterministic_evaluator = DeterministicEvaluator.apply
exact_match_evaluator = ExactMatchEvaluator.apply
lm_judge_evaluator = LMJudgeEvaluator.apply
