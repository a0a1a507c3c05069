"""Trajectories: time derivatives, integrators, splines and minimum-jerk motions.

A trajectory is sampled joint positions ``[..., horizon, dof]`` with steps ``dt`` in seconds.
"""

from pullback.trajectory._motion import Motion
from pullback.trajectory._state import State, free, hold, rest

__all__ = ["Motion", "State", "free", "hold", "rest"]
