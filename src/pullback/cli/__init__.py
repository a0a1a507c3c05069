"""The ``pullback`` command."""

from pullback.cli._main import main

__all__ = ["main"]
