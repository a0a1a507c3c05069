"""Training: data, measuring, a plan before anything is spent, and the loop."""

from pullback.text._chat import count_calls
from pullback.text._measure import Measure
from pullback.text.lm._run import plan_training
from pullback.text.train._data import (
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from pullback.text.train._trainer import Result, Trainer

__all__ = [
    "DataLoader",
    "Dataset",
    "Measure",
    "RandomSampler",
    "Result",
    "Sampler",
    "SequentialSampler",
    "Trainer",
    "WeightedRandomSampler",
    "count_calls",
    "plan_training",
]
