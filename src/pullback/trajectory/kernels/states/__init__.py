"""Least motions within limits: one program over states for each joint of each trajectory."""

from pullback.trajectory.kernels.states._dispatch import (
    ROWS,
    Conditions,
    LeastMotion,
    bound_rows,
    find_rows,
)

__all__ = ["ROWS", "Conditions", "LeastMotion", "bound_rows", "find_rows"]
