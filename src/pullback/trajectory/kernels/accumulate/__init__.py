"""The kernel family behind `pullback.trajectory.integrate`: a chain of sums over samples."""

from pullback.trajectory.kernels.accumulate._reference import (
    METHODS,
    Method,
    step_table,
    uniform_table,
)

__all__ = ["METHODS", "Method", "step_table", "uniform_table"]
