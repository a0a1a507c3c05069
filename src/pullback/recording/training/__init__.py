"""What trains no more: parameters that an optimiser holds and no gradient reaches, and their kin."""

from pullback.recording.training._finding import ParameterFinding
from pullback.recording.training._watch import TrainingWatch, watch_training

__all__ = ["ParameterFinding", "TrainingWatch", "watch_training"]
__dir__ = __all__.copy  # completion offers these names, and no module inside
