"""The operations as functions."""

from pullback.compat.afnio._operations import (
    add,
    chat_completion,
    deterministic_evaluator,
    exact_match_evaluator,
    lm_judge_evaluator,
    split,
    sum,
)

__all__ = [
    "add",
    "chat_completion",
    "deterministic_evaluator",
    "exact_match_evaluator",
    "lm_judge_evaluator",
    "split",
    "sum",
]
