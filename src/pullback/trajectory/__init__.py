"""Trajectories: time derivatives, integrators, splines and minimum-jerk motions.

A trajectory is sampled joint positions ``[..., horizon, dof]`` with steps ``dt`` in seconds.
"""

from pullback.internal._extras import require_tensor as _require_tensor

_require_tensor("pullback.trajectory")

from pullback.internal.kernels._backend import Backend, backend_used
from pullback.internal.kernels._threads import threads_used
from pullback.trajectory._exchange import (
    from_joint_trajectory,
    read_csv,
    to_joint_trajectory,
    write_csv,
)
from pullback.trajectory._limits import Limits, read_urdf_limits
from pullback.trajectory._motion import Motion, concatenate
from pullback.trajectory._plot import plot
from pullback.trajectory._state import State, free, hold, rest
from pullback.trajectory.curves._differentiate import differentiate
from pullback.trajectory.curves._integrate import integrate
from pullback.trajectory.curves._quintic import quintic
from pullback.trajectory.curves._resample import resample
from pullback.trajectory.curves._spline import Spline, bspline
from pullback.trajectory.curves._unwrap import unwrap
from pullback.trajectory.plans._minimum_duration import DurationBounds, minimum_duration
from pullback.trajectory.plans._minimum_jerk import minimum_acceleration, minimum_jerk
from pullback.trajectory.plans._minimum_time import minimum_time
from pullback.trajectory.plans._preconditioner import Preconditioner

__all__ = [
    "Backend",
    "DurationBounds",
    "Limits",
    "Motion",
    "Preconditioner",
    "Spline",
    "State",
    "backend_used",
    "bspline",
    "concatenate",
    "differentiate",
    "free",
    "from_joint_trajectory",
    "hold",
    "integrate",
    "minimum_acceleration",
    "minimum_duration",
    "minimum_jerk",
    "minimum_time",
    "plot",
    "quintic",
    "read_csv",
    "read_urdf_limits",
    "resample",
    "rest",
    "threads_used",
    "to_joint_trajectory",
    "unwrap",
    "write_csv",
]
__dir__ = __all__.copy  # completion offers these names, and no module inside
