"""What trains no more: parameters that an optimiser holds and that no gradient reaches."""

from pullback.recording.training._watch import (
    KINDS,
    ParameterFinding,
    Training,
    TrainingWatch,
    watch_training,
)

__all__ = ["KINDS", "ParameterFinding", "Training", "TrainingWatch", "watch_training"]
__dir__ = __all__.copy  # completion offers these names, and no module inside
