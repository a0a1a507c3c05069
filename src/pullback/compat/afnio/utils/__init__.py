"""Data."""

from pullback.compat.afnio.utils import data, datasets

__all__ = ["data", "datasets"]
