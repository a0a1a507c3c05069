"""The kernel family behind `pullback.trajectory.differentiate`: a banded stencil over samples."""

from pullback.trajectory.kernels.stencil._weights import (
    SCHEMES,
    Layout,
    Scheme,
    nonuniform_table,
    uniform_table,
)

__all__ = ["SCHEMES", "Layout", "Scheme", "nonuniform_table", "uniform_table"]
