"""The names of ``unit_scaling.analysis``; see `pullback.compat.unit_scaling`."""

from pullback.compat.unit_scaling._frame import graph_to_dataframe
from pullback.compat.unit_scaling._plot import plot

__all__ = ["graph_to_dataframe", "plot"]
