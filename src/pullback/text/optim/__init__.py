"""Optimisers of texts: from feedback, measured, or by search."""

from pullback.text.optim._comparison import Comparison
from pullback.text.optim._optimizer import Optimizer
from pullback.text.optim._pareto import GepaProgram, Pareto
from pullback.text.optim._tgd import TGD, Constraint, keeps_fields, max_length, never
from pullback.text.optim._validated import Outcome, Validated

__all__ = [
    "TGD",
    "Comparison",
    "Constraint",
    "GepaProgram",
    "Optimizer",
    "Outcome",
    "Pareto",
    "Validated",
    "keeps_fields",
    "max_length",
    "never",
]
