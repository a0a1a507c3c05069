"""The whole table."""

from tests.tensor.ordinary import (  # noqa: F401  # each adds its rows
    activations,
    algebra,
    indexing,
    losses,
    norms,
    outputs,
    structures,
    surrogates,
)
from tests.tensor.ordinary.row import ROWS

__all__ = ["ROWS"]
