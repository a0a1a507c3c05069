"""The operations as modules, and `Module`."""

from pullback.compat.afnio.cognitive.modules.module import Module
from pullback.compat.afnio.cognitive.modules.operations import (
    Add,
    ChatCompletion,
    DeterministicEvaluator,
    ExactMatchEvaluator,
    LMJudgeEvaluator,
    Split,
    Sum,
)

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
