"""Least motions within limits: interior points, each joint of each trajectory a problem."""

from pullback.trajectory.kernels.programs._decide import Bounds, bound_problems
from pullback.trajectory.kernels.programs._dispatch import solve_problems
from pullback.trajectory.kernels.programs._function import KeepLimits, keep_limits
from pullback.trajectory.kernels.programs._problem import Problem, Unknowns

__all__ = [
    "Bounds",
    "KeepLimits",
    "Problem",
    "Unknowns",
    "bound_problems",
    "keep_limits",
    "solve_problems",
]
