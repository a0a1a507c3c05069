"""Symmetric positive definite banded systems: products, and solves in time linear in the size."""

from pullback.trajectory.kernels.banded._product import banded_product
from pullback.trajectory.kernels.banded._solve import BandedSolve, banded_solve
from pullback.trajectory.kernels.banded._triangular import (
    TriangularSolve,
    triangular_product,
    triangular_solve,
)

__all__ = [
    "BandedSolve",
    "TriangularSolve",
    "banded_product",
    "banded_solve",
    "triangular_product",
    "triangular_solve",
]
