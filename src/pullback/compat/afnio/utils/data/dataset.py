"""What samples are read from."""

from pullback.text.train import Dataset

__all__ = ["Dataset"]
