"""Modules, parameters, and the operations as modules."""

from pullback.compat.afnio.cognitive import functional, modules
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
    "functional",
    "modules",
]
