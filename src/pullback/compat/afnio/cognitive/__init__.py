"""Modules, parameters, and the operations as modules."""

from pullback.compat.afnio.cognitive import functional, modules
from pullback.compat.afnio.cognitive.functional import (
    add,
    chat_completion,
    deterministic_evaluator,
    exact_match_evaluator,
    lm_judge_evaluator,
    split,
    sum,
)
from pullback.compat.afnio.cognitive.modules import (
    Add,
    ChatCompletion,
    DeterministicEvaluator,
    ExactMatchEvaluator,
    LMJudgeEvaluator,
    Module,
    Split,
    Sum,
)
from pullback.compat.afnio.cognitive.parameter import Parameter

__all__ = [
    "Add",
    "ChatCompletion",
    "DeterministicEvaluator",
    "ExactMatchEvaluator",
    "LMJudgeEvaluator",
    "Module",
    "Parameter",
    "Split",
    "Sum",
    "add",
    "chat_completion",
    "deterministic_evaluator",
    "exact_match_evaluator",
    "functional",
    "lm_judge_evaluator",
    "modules",
    "split",
    "sum",
]
