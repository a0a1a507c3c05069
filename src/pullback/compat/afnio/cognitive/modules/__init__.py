"""The operations as modules, and `Module`."""

from pullback.compat.afnio.cognitive import functional
from pullback.compat.afnio.cognitive.modules.module import Module, module_of

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

Add, Split, Sum = map(module_of, (functional.add, functional.split, functional.sum))
ChatCompletion = module_of(functional.chat_completion)
DeterministicEvaluator = module_of(functional.deterministic_evaluator)
ExactMatchEvaluator = module_of(functional.exact_match_evaluator)
LMJudgeEvaluator = module_of(functional.lm_judge_evaluator)
