"""The operations as modules, and `Module`."""

from pullback.compat.afnio.cognitive.modules.add import Add
from pullback.compat.afnio.cognitive.modules.chat_completion import ChatCompletion
from pullback.compat.afnio.cognitive.modules.deterministic_evaluator import DeterministicEvaluator
from pullback.compat.afnio.cognitive.modules.exact_match_evaluator import ExactMatchEvaluator
from pullback.compat.afnio.cognitive.modules.lm_judge_evaluator import LMJudgeEvaluator
from pullback.compat.afnio.cognitive.modules.module import Module
from pullback.compat.afnio.cognitive.modules.split import Split
from pullback.compat.afnio.cognitive.modules.sum import Sum

__all__ = [
    "Add",
    "ChatCompletion",
    "DeterministicEvaluator",
    "ExactMatchEvaluator",
    "LMJudgeEvaluator",
    "Module",
    "Split",
    "Sum",
]
