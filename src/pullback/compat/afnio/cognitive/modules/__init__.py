"""The operations as modules, and `Module`."""

from pullback.compat.afnio.autodiff import basic_ops, evaluator, lm_ops
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

Add, Split, Sum = map(module_of, (basic_ops.Add, basic_ops.Split, basic_ops.Sum))
ChatCompletion = module_of(lm_ops.ChatCompletion)
DeterministicEvaluator = module_of(evaluator.DeterministicEvaluator)
ExactMatchEvaluator = module_of(evaluator.ExactMatchEvaluator)
LMJudgeEvaluator = module_of(evaluator.LMJudgeEvaluator)
