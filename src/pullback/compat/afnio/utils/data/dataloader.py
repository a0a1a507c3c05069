"""Batches of samples."""

from pullback.text.train import DataLoader

__all__ = ["DataLoader"]
