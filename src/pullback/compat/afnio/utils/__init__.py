"""Data."""

from pullback.compat.afnio.utils import data

__all__ = ["data"]
