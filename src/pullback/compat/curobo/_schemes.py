"""The two ways to a whole motion and their transposes: differences, and held accelerations.

Actions ``u`` are ``[batch, horizon, dof]``, the starts position, velocity and acceleration, each
``[batch, dof]``. Of ``traj_dt`` positions take the first element, 1/dt; accelerations take seconds,
one value or ``[horizon]`` of which the first is not used.

Both are linear in actions and starts. The transposes are written out: ``torch.func.vjp`` in their
place would compute the motion again. Measured on one core of a CPU, it takes 7 to 16 times as long
for a batch of 64 x 32 x 7 and smaller, and 1.0 to 2.6 times for 512 x 256 x 7.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from pullback.compat.curobo._shapes import check_shapes
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal.kernels._backend import choose_backend
from pullback.trajectory import State, integrate
from pullback.trajectory._checks import check_range
from pullback.trajectory.kernels._dispatch import Levels, kernels_word
from pullback.trajectory.kernels.accumulate._reference import Method

__all__ = ["BACKWARD", "CENTRAL", "EULER", "EXACT", "Differences", "Four", "Held"]

Four = tuple[Tensor, Tensor, Tensor, Tensor]
Starts = tuple[Tensor, Tensor, Tensor]
# Of actions, start position, velocity and acceleration, and of traj_dt where it is asked for.
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]

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
        _check(u, starts, traj_dt, 1)
        rate = _read_rate(traj_dt)
        ago = _ago(u, rate)
        position, velocity, acceleration = (start[:, None] for start in starts)
        past = position - ago * velocity + ago**2 / 2 * acceleration
        held = u[:, -1:].expand(-1, self.held, -1)
        line = torch.cat([past, u if self.held else u[:, :-1], held], dim=1)
        p, v, a, j = self._run(rate, line, line[:, :0])
        if self.held:  # two samples at either end are for the others to look at
            return p[:, 2:-2], v[:, 2:-2], a[:, 2:-2], j[:, 2:-2]
        v, a = torch.cat([velocity, v[:, 4:]], 1), torch.cat([acceleration, a[:, 4:]], 1)
        return p[:, _PAST:], v, a, pad(j[:, 4:], (0, 0, 1, 0))

    def pull(
        self, u: Tensor, starts: Starts, traj_dt: Tensor, cotangents: Four, timed: bool
    ) -> Gradients:
        """Return the gradients of the arguments: the transpose of `move`, and ``timed`` that of dt.

        With ``y_k = r^k z_k`` that of the rate is ``sum_k k c_k y_k / r``; in the parabola, ``ago``
        is a number over the rate, and ``past = q - ago v + ago^2 a / 2``.
        """
        rate, count = traj_dt.flatten()[0], u.shape[1]
        if self.held:
            levels = [pad(part, (0, 0, 2, 2)) for part in cotangents]
        else:
            of_p, *others = cotangents
            levels = [pad(of_p, (0, 0, _PAST, 0)), *(pad(c[:, 1:], (0, 0, 4, 0)) for c in others)]
        of_line = self._run(rate, *levels)[0]
        of_past, of_act = of_line[:, : _PAST + 1], of_line[:, _PAST + 1 :]
        of_v = of_a = 0
        if self.held:
            last = of_act[:, count - 1 :].sum(1, keepdim=True)
            of_act = torch.cat([of_act[:, : count - 1], last], dim=1)
        else:  # the derivatives of the start are those of sample 0
            of_act, of_v, of_a = pad(of_act, (0, 0, 0, 1)), cotangents[1][:, 0], cotangents[2][:, 0]
        ago, of_dt = _ago(u, rate), None
        if timed:
            pairs = list(zip(cotangents, self.move(u, starts, traj_dt), strict=True))
            first = 0 if self.held else 1  # what the start gives stays
            of_rate = sum(k * (c * y)[:, first:].sum() for k, (c, y) in enumerate(pairs))
            moved = ago * (starts[1][:, None] - ago * starts[2][:, None])
            of_rate = (of_rate + (of_past * moved).sum()) / rate
            of_dt = pad(of_rate.reshape(1), (0, traj_dt.numel() - 1)).reshape(traj_dt.shape)
        of_v, of_a = of_v - (ago * of_past).sum(1), of_a + (ago**2 / 2 * of_past).sum(1)
        return of_act, of_past.sum(1), of_v, of_a, of_dt

    def _run(self, rate: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        """The kernel of the stencil, or for cotangents of all four its adjoint.

        Rows whose window would leave the line have one moved inwards: what they give is cut off.
        """
        width, like = len(self.weights[0]), given[0]
        orders = torch.arange(1, 4, device=like.device)[:, None]
        weights = torch.tensor(self.weights, dtype=torch.float64, device=like.device)
        table = (weights * rate.to(torch.float64) ** orders).to(like.dtype)
        geometry = self.before, width, self.before, width - 1 - self.before, -1, -1
        word = kernels_word("stencil", choose_backend(like.device, "auto"), geometry)
        return Levels.apply(table.expand(1, width, 3, width), word, len(given) == 4, *given)


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

    With a step dt, ``v' = v + dt a`` and ``q' = q + dt v + weight dt^2 a``, with the velocity
    before the step: 1/2 for the exact integral, 1 for semi-implicit Euler.
    """

    method: Method
    weight: float

    def move(self, u: Tensor, starts: Starts, traj_dt: Tensor) -> Four:
        """Return position, velocity, acceleration and jerk."""
        _check(u, starts, traj_dt, 2)
        dt = _read_steps(u, traj_dt)
        start = State(starts[0], starts[1])
        motion = integrate(u[:, :-1], dt, start=start, method=self.method)
        acceleration = torch.cat([starts[2][:, None], u[:, :-1]], dim=1)
        # A tensor of steps would make jerk alone of their dtype.
        jerk = acceleration.diff(dim=1) / dt[:, None].to(acceleration.dtype)
        return motion.position, motion.velocity, acceleration, pad(jerk, (0, 0, 1, 0))

    def pull(
        self, u: Tensor, starts: Starts, traj_dt: Tensor, cotangents: Four, timed: bool
    ) -> Gradients:
        """Return the gradients of the arguments: the transpose of `move`, and ``timed`` that of dt.

        The states are running sums of what the steps add, so the gradients sum backwards.
        """
        dt, of_dt = _read_steps(u, traj_dt)[:, None], None
        of_p, of_v, of_a, of_j = cotangents
        later_p = _sum_from_here(of_p)
        later_v = _sum_from_here(of_v + pad(later_p[:, 1:] * dt, (0, 0, 0, 1)))
        of_change = of_j[:, 1:] / dt
        of_push = later_v[:, 1:] * dt + self.weight * later_p[:, 1:] * dt**2 + of_change
        of_held = of_a + pad(of_push, (0, 0, 1, 0)) - pad(of_change, (0, 0, 0, 1))
        if timed:
            _, velocity, acceleration, jerk = self.move(u, starts, traj_dt)
            held = acceleration[:, 1:]
            gained = velocity[:, :-1] + 2 * self.weight * dt * held
            of_dt = later_v[:, 1:] * held + later_p[:, 1:] * gained - of_change * jerk[:, 1:]
            of_dt = of_dt.sum((0, 2))
            count = traj_dt.numel()
            of_dt = of_dt.sum() if count == 1 else pad(of_dt, (1, count - len(of_dt) - 1))
            of_dt = of_dt.reshape(traj_dt.shape)
        return pad(of_held[:, 1:], (0, 0, 0, 1)), later_p[:, 0], later_v[:, 0], of_held[:, 0], of_dt


EXACT = Held("exact", 0.5)
EULER = Held("semi_implicit_euler", 1.0)


def _sum_from_here(part: Tensor) -> Tensor:
    return part.flip(1).cumsum(1).flip(1)


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


def _read_rate(traj_dt: Tensor) -> Tensor:
    """The first element of ``traj_dt``, 1/dt."""
    rate = traj_dt.flatten()[0]
    most = torch.finfo(rate.dtype if rate.is_floating_point() else torch.float64).max
    check_range("traj_dt[0]", rate, 1 / most, most, "1/dt > 0, in 1/seconds, finite as dt is")
    return rate


def _check(u: Tensor, starts: Starts, traj_dt: Tensor, least: int) -> None:
    named = zip(("start_position", "start_velocity", "start_acceleration"), starts, strict=True)
    rows = {name: (start, "batch dof") for name, start in named}
    if isinstance(u, Tensor) and not u.is_floating_point():
        mend = "Pass u_act.float()."
        raise ArgumentTypeError(
            "The actions are no floating numbers.", given=f"{u.dtype}", mend=mend
        )
    check_shapes(u_act=(u, "batch horizon dof"), traj_dt=(traj_dt, "..."), **rows)
    if u.shape[1] < least or not traj_dt.numel():
        raise ArgumentError(
            "There are too few actions, or traj_dt is empty.",
            given=f"shapes {tuple(u.shape)} and {tuple(traj_dt.shape)}",
            expected=f"{least} actions or more, and one value or more",
        )
