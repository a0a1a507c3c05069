"""The two ways to a whole motion: differences of positions, and accelerations that are held.

Actions ``u`` are ``[batch, horizon, dof]``, the starts position, velocity and acceleration, each
``[batch, dof]``. Of ``traj_dt`` positions take the first element, 1/dt; accelerations take seconds,
one value or ``[horizon]`` of which the first is not used.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from pullback.compat.curobo._shapes import check_shapes
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal.kernels._backend import choose_backend
from pullback.trajectory import State, integrate
from pullback.trajectory._seconds import check_range
from pullback.trajectory.kernels._dispatch import kernels_word, move_lines
from pullback.trajectory.kernels.accumulate._reference import Method

__all__ = ["BACKWARD", "CENTRAL", "EULER", "EXACT", "Differences", "Four", "Held"]

Four = tuple[Tensor, Tensor, Tensor, Tensor]
Starts = tuple[Tensor, Tensor, Tensor]

# Samples before the start, on its parabola: as many as the widest stencil reaches back.
_PAST = 3


@dataclass(frozen=True)
class Differences:
    """Derivatives of positions, each a row of weights on the samples around it.

    The line of positions is three samples on the parabola of the start, the start, the actions,
    and the last of these ``held`` times more. With the rate ``r = 1/dt``, the derivative of order k
    is ``y_k[h] = r^k sum_i weights[k - 1][i] line[h - before + i]``. Where the last action is not
    ``held`` it is not used, and sample 0 has the derivatives of the start.
    """

    weights: tuple[tuple[float, ...], ...]
    before: int
    held: int

    def move(self, u: Tensor, starts: Starts, traj_dt: Tensor) -> Four:
        """Return position, velocity, acceleration and jerk."""
        _check(u, starts, traj_dt)
        rate = _read_rate(traj_dt, u.dtype)
        ago = _ago(u, rate)
        position, velocity, acceleration = (start[:, None] for start in starts)
        past = position - ago * velocity + ago**2 / 2 * acceleration
        held = u[:, -1:].expand(-1, self.held, -1)
        line = torch.cat([past, u if self.held else u[:, :-1], held], dim=1)
        p, v, a, j = self._run(rate, line)
        if self.held:  # two samples at either end are for the others to look at
            return p[:, 2:-2], v[:, 2:-2], a[:, 2:-2], j[:, 2:-2]
        v, a = torch.cat([velocity, v[:, 4:]], 1), torch.cat([acceleration, a[:, 4:]], 1)
        return p[:, _PAST:], v, a, pad(j[:, 4:], (0, 0, 1, 0))

    def _run(self, rate: Tensor, line: Tensor) -> tuple[Tensor, ...]:
        """The kernel of the stencil.

        Rows whose window would leave the line have one moved inwards: what they give is cut off.
        """
        width, device = len(self.weights[0]), line.device
        orders = torch.arange(1, 4, device=device)[:, None]
        weights = torch.tensor(self.weights, dtype=torch.float64, device=device)
        table = (weights * rate.to(torch.float64) ** orders).to(line.dtype)
        geometry = self.before, width, self.before, width - 1 - self.before, -1, -1
        word = kernels_word("stencil", choose_backend(device, "auto"), geometry)
        return move_lines(table.expand(1, width, 3, width), word, line, line[:, :0])


def _ago(u: Tensor, rate: Tensor) -> Tensor:
    """How many seconds before the start each of the first samples lies, ``[4, 1]``."""
    return torch.arange(_PAST, -1, -1, dtype=u.dtype, device=u.device)[:, None] / rate


BACKWARD = Differences(((0, 0, -1, 1), (0, 1, -2, 1), (-1, 3, -3, 1)), before=3, held=0)
# Exact on polynomials of degree 4, 5 and 4.
CENTRAL = Differences(
    (
        (1 / 12, -8 / 12, 0, 8 / 12, -1 / 12),
        (-1 / 12, 16 / 12, -30 / 12, 16 / 12, -1 / 12),
        (-1 / 2, 1, 0, -1, 1 / 2),
    ),
    before=2,
    held=4,
)


@dataclass(frozen=True)
class Held:
    """Accelerations, each held over its step; sample 0 is the start, the last action is not used.

    With a step dt, ``v' = v + dt a`` and, with the velocity before the step,
    ``q' = q + dt v + dt^2 a / 2`` by the exact integral or ``q' = q + dt v + dt^2 a`` by
    semi-implicit Euler.
    """

    method: Method

    def move(self, u: Tensor, starts: Starts, traj_dt: Tensor) -> Four:
        """Return position, velocity, acceleration and jerk."""
        _check(u, starts, traj_dt)
        dt = _read_steps(u, traj_dt)
        acceleration = torch.cat([starts[2][:, None], u[:, :-1]], dim=1)
        # A tensor of steps would make jerk alone of their dtype.
        jerk = pad(acceleration.diff(dim=1) / dt[:, None].to(acceleration.dtype), (0, 0, 1, 0))
        if not len(dt):  # of one action, which is not used
            return starts[0][:, None].clone(), starts[1][:, None].clone(), acceleration, jerk
        start = State(starts[0], starts[1])
        motion = integrate(u[:, :-1], dt, start=start, method=self.method)
        return motion.position, motion.velocity, acceleration, jerk


EXACT = Held("exact")
EULER = Held("semi_implicit_euler")


def _read_steps(u: Tensor, traj_dt: Tensor) -> Tensor:
    """The seconds of each step between samples, ``[horizon - 1]``."""
    horizon, dt = u.shape[1], traj_dt.flatten()
    # A buffer of a longer horizon is what published kernels read, too.
    if dt.numel() != 1 and (traj_dt.ndim != 1 or len(dt) < horizon):
        raise ArgumentError(
            "traj_dt does not fit the actions.",
            given=f"shape {tuple(traj_dt.shape)} for {horizon} actions",
            expected=f"one value, or {horizon} seconds or more of which the first is not used",
        )
    return dt.expand(horizon - 1) if dt.numel() == 1 else dt[1:horizon]


def _read_rate(traj_dt: Tensor, dtype: torch.dtype) -> Tensor:
    """The first element of ``traj_dt``, 1/dt."""
    rate, most = traj_dt.flatten()[0], torch.finfo(dtype).max
    # The past lies three steps before the start, whose square is taken; jerk is some 100 times the
    # cube of the rate.
    low, high = 10 / most**0.5, (most / 1000) ** (1 / 3)
    expected = f"1/dt > 0, in 1/seconds, that {dtype} can hold with its powers"
    check_range("traj_dt[0]", rate, low, high, f"{expected}: {low:.2g} to {high:.2g}")
    return rate


def _check(u: Tensor, starts: Starts, traj_dt: Tensor) -> None:
    named = zip(("start_position", "start_velocity", "start_acceleration"), starts, strict=True)
    rows = {name: (start, "batch dof") for name, start in named}
    if isinstance(u, Tensor) and not u.is_floating_point():
        mend = "Pass u_act.float()."
        raise ArgumentTypeError(
            "The actions are no floating numbers.", given=f"{u.dtype}", mend=mend
        )
    check_shapes(u_act=(u, "batch horizon dof"), traj_dt=(traj_dt, "..."), **rows)
    if not (u.shape[1] and traj_dt.numel()):
        raise ArgumentError(
            "There is no action, or traj_dt is empty.",
            given=f"shapes {tuple(u.shape)} and {tuple(traj_dt.shape)}",
            expected="one action or more, and one value or more",
        )
