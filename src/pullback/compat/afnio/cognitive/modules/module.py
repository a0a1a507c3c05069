"""`Module`: a pipeline, or a part of one."""

from typing import Any

from pullback.text import Module

__all__ = ["Module", "module_of"]


def module_of(operation: Any) -> type[Module]:
    """An operation as a module: of ``lm_judge_evaluator`` the class LMJudgeEvaluator."""
    name = operation.__name__.title().replace("_", "").replace("Lm", "LM")
    rules = {"__doc__": operation.__doc__, "forward": staticmethod(operation)}
    return type(name, (Module,), rules)
