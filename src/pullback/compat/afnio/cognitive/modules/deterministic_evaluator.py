"""`DeterministicEvaluator`: a score by a function."""

from pullback.compat.afnio.autodiff import evaluator
from pullback.compat.afnio.cognitive.modules.module import module_of

__all__ = ["DeterministicEvaluator"]

DeterministicEvaluator = module_of(evaluator.DeterministicEvaluator)
