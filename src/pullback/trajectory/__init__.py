"""Trajectories: time derivatives, integrators, splines and minimum-jerk motions.

A trajectory is sampled joint positions ``[..., horizon, dof]`` with steps ``dt`` in seconds.
"""

from pullback.trajectory._backend import Backend, backend_used
from pullback.trajectory._bspline import bspline
from pullback.trajectory._differentiate import differentiate
from pullback.trajectory._integrate import integrate
from pullback.trajectory._limits import Limits
from pullback.trajectory._minimum_jerk import minimum_acceleration, minimum_jerk
from pullback.trajectory._minimum_time import minimum_time
from pullback.trajectory._motion import Motion
from pullback.trajectory._plot import plot
from pullback.trajectory._preconditioner import Preconditioner
from pullback.trajectory._quintic import quintic
from pullback.trajectory._resample import resample
from pullback.trajectory._spline import Spline
from pullback.trajectory._state import State, free, hold, rest

__all__ = [
    "Backend",
    "Limits",
    "Motion",
    "Preconditioner",
    "Spline",
    "State",
    "backend_used",
    "bspline",
    "differentiate",
    "free",
    "hold",
    "integrate",
    "minimum_acceleration",
    "minimum_jerk",
    "minimum_time",
    "plot",
    "quintic",
    "resample",
    "rest",
]
