"""The order of samples."""

from pullback.text.train import (
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

__all__ = ["RandomSampler", "Sampler", "SequentialSampler", "WeightedRandomSampler"]
