"""Products and solves with a banded triangular factor, which is a constant."""

from pullback.trajectory.kernels.banded._solve import multiply, solve

__all__ = ["multiply", "solve"]
