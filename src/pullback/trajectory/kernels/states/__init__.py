"""Least motions within limits: one program over states for each joint of each trajectory."""

from pullback.trajectory.kernels.states._dispatch import ROWS, bound_rows, find_rows
from pullback.trajectory.kernels.states._function import Conditions, LeastMotion

__all__ = ["ROWS", "Conditions", "LeastMotion", "bound_rows", "find_rows"]
