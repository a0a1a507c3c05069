"""`Motion`: positions and their time derivatives at the samples of a trajectory."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._arguments import checked
from pullback.internal.torch import innermost
from pullback.trajectory._checks import (
    check_floating,
    check_named_device,
    concrete,
    fits_within,
    somewhere,
    wide_dtype,
)
from pullback.trajectory._limits import Limits, check_limits, range_of
from pullback.trajectory._seconds import check_range, check_steps, check_steps_shape, take_seconds
from pullback.trajectory._state import PARTS, register_dataclass

__all__ = ["Motion", "check_dtype", "check_finite", "concatenate", "make_motion"]

_FIELDS = (*PARTS, "dt", "start_time")


@dataclass(frozen=True, eq=False)
class Motion:
    """Position, velocity, acceleration and jerk at every sample of a trajectory.

    A `Motion` is a pytree, so `torch.func.vmap`, `jacrev`, `torch.compile` and the like take it
    and return it.

    Arguments:
        position: ``[..., horizon, dof]``, in the unit of a joint, usually radians.
        velocity: the same shape, per second.
        acceleration: the same shape, per second squared.
        jerk: the same shape, per second cubed.
        dt: seconds between neighbouring samples: a scalar, ``[horizon - 1]`` or
            ``[..., horizon - 1]``. A number becomes a tensor.
        start_time: seconds at sample 0, a scalar or ``[...]``; zero if left out. Best in float64:
            float32 does not tell instants of a clock apart.

    Raises:
        ArgumentError: the four sequences do not have one shape, or times do not fit them, are not
            finite, or do not increase.
        ArgumentTypeError: a part is not a floating tensor, or a time no number and no such tensor.

    Example:
        >>> import torch
        >>> from pullback.trajectory import Motion
        >>> still = torch.zeros(5, 7)
        >>> motion = Motion(still, still, still, still, torch.tensor(0.5))
        >>> motion.horizon, motion.dof, motion.times.tolist()
        (5, 7, [0.0, 0.5, 1.0, 1.5, 2.0])
        >>> motion[2:].times.tolist(), motion[:3].to(dtype=torch.float64).dt.dtype
        ([1.0, 1.5, 2.0], torch.float64)
    """

    position: Tensor
    velocity: Tensor
    acceleration: Tensor
    jerk: Tensor
    dt: Tensor
    start_time: Tensor | None = None

    def __post_init__(self) -> None:
        parts = {name: getattr(self, name) for name in PARTS}
        # In a pytree a motion may hold in_dims or markers; a motion of tensors holds no other.
        if not any(isinstance(part, Tensor) for part in parts.values()):
            return
        for name, part in parts.items():
            check_floating(f"{name} of a motion", part, "[..., horizon, dof]", 2)
        shapes = [part.shape for part in parts.values()]
        if any(shape != shapes[0] for shape in shapes):
            raise ArgumentError(
                "A motion needs position, velocity, acceleration and jerk of one shape.",
                given=", ".join(str(tuple(shape)) for shape in shapes),
                expected="four times [..., horizon, dof]",
            )
        steps = check_steps("dt of a motion", self.dt, self.position, self._steps, wait=False)
        seconds = take_seconds("dt", steps, self.position, wide_dtype(self.position.dtype))
        object.__setattr__(self, "dt", seconds)
        if self.start_time is not None:
            object.__setattr__(self, "start_time", _take_start(self.start_time, self.position))

    @property
    def _steps(self) -> int:
        return max(self.horizon - 1, 0)

    @property
    def horizon(self) -> int:
        """How many samples there are."""
        return self.position.shape[-2]

    @property
    def dof(self) -> int:
        """How many joints there are."""
        return self.position.shape[-1]

    @property
    def times(self) -> Tensor:
        """Seconds at each sample, ``[horizon]`` or ``[..., horizon]``."""
        # Vmap may have given a batch to a scalar.
        check_steps_shape("dt of a motion", self.dt, self.position, self._steps)
        if self.dt.ndim == 0:
            steps = torch.arange(self.horizon, dtype=self.dt.dtype, device=self.dt.device)
            since = steps * self.dt
        else:
            since = torch.nn.functional.pad(self.dt.cumsum(-1), (1, 0))
        return since if self.start_time is None else self.start_time.unsqueeze(-1) + since

    def __len__(self) -> int:
        return self.horizon

    def __getitem__(self, samples: slice) -> "Motion":
        """Some samples in a row, at the times that they have: ``motion[10:20]``."""
        if not isinstance(samples, slice) or samples.step not in (None, 1):
            raise ArgumentTypeError(
                "A motion is cut by a slice of its samples.",
                given=repr(samples),
                expected="motion[first:last], all samples in between",
                mend="Index its parts, or call resample for other steps.",
            )
        try:
            first, last, _ = samples.indices(self.horizon)
        except TypeError:
            raise ArgumentTypeError(
                "A motion is cut between whole samples.",
                given=repr(samples),
                expected="motion[1:3]",
            ) from None
        if last <= first:
            raise ArgumentError("No sample is left.", given=f"{samples} of {self.horizon} samples")
        parts = [getattr(self, name)[..., first:last, :] for name in PARTS]
        dt = self.dt[..., first : last - 1] if self.dt.ndim else self.dt
        since = self.start_time if not first else self.times[..., first]
        return Motion(*parts, dt=dt, start_time=since)

    def violations(self, limits: Limits) -> dict[str, Tensor]:
        """How far the motion goes beyond each limit, at samples and between them.

        Between samples it is the polynomial that `minimum_jerk` and its kin have there, whose jerk
        is that of the sample before: the extremes of a cubic are found, not looked for.

        Arguments:
            limits: for the joints of the motion.

        Returns:
            by kind, those that ``limits`` gives, ``[..., dof]`` in float64 and in the unit of the
            kind: positive where the range is left, else minus the room that is left.

        Raises:
            ArgumentError: limits that do not fit the motion, or numbers in it that are not finite.
            ArgumentTypeError: not a `Limits`.

        Example:
            >>> import torch
            >>> from pullback.trajectory import Limits, minimum_jerk
            >>> motion = minimum_jerk(torch.tensor([[0.0], [1.0]]), 1.0)
            >>> beyond = motion.violations(Limits(velocity=1.5, position=(-1.0, 1.0)))
            >>> {kind: round(excess.item(), 3) for kind, excess in beyond.items()}
            {'velocity': 0.375, 'position': 0.0}
        """
        check_limits(limits, self.position)
        check_finite(self)
        return _excess_between([getattr(self, name) for name in PARTS], self.dt, limits)

    def to(
        self,
        device: torch.device | str | torch.dtype | None = None,
        dtype: torch.dtype | None = None,
    ) -> "Motion":
        """The motion on another device, or of another dtype.

        Times stay as fine as they must be: steps in float32 at least, the start time as it is.

        Arguments:
            device: where its tensors go; where they are if left out. As `torch.Tensor.to` does, it
                takes a dtype in this place too.
            dtype: a floating dtype; theirs if left out.

        Raises:
            ArgumentTypeError: a dtype that is not floating.
            ArgumentError: no such device, or two dtypes.
        """
        if isinstance(device, torch.dtype):
            if dtype is not None:
                raise ArgumentError("Two dtypes are given.", given=f"{device} and {dtype}")
            device, dtype = None, device
        if dtype is not None:
            check_dtype(dtype)
        check_named_device(device)
        parts = {name: getattr(self, name).to(device=device, dtype=dtype) for name in PARTS}
        steps = self.dt.to(device=device, dtype=None if dtype is None else wide_dtype(dtype))
        start = None if self.start_time is None else self.start_time.to(device=device)
        return replace(self, **parts, dt=steps, start_time=start)


def _excess_between(parts: list[Tensor], dt: Tensor, limits: Limits) -> dict[str, Tensor]:
    """How far each limited kind is beyond its range at the most, ``[..., dof]``, or minus its room.

    With the state and the jerk of a sample, a kind is a polynomial of the time since then. It is
    largest or smallest at an end of the step, or where its derivative is zero.
    """
    states = [part.detach().to(torch.float64) for part in parts]
    # What follows the last sample is not known: a step of no length is the sample itself.
    step = torch.nn.functional.pad(dt.detach().to(torch.float64).expand(
        *dt.shape[:-1], states[0].shape[-2] - 1), (0, 1)).unsqueeze(-1)  # fmt: skip
    found = {}
    for kind in limits.given:
        order = PARTS.index(kind)
        lower, upper = (end.unsqueeze(-2) for end in range_of(limits, kind, parts[0]))
        beyond = [
            torch.maximum(value - upper, lower - value)
            for value in (_evaluate(states[order:], t) for t in _extremes(states[order:], step))
        ]
        found[kind] = torch.stack(beyond).amax(0).amax(-2)
    return found


def _evaluate(derivatives: list[Tensor], t: Tensor) -> Tensor:
    """A polynomial of ``t`` by its value and its derivatives at zero."""
    total = torch.zeros_like(derivatives[0])
    for power in range(len(derivatives) - 1, -1, -1):
        total = derivatives[power] + total * t / (power + 1)
    return total


def _extremes(derivatives: list[Tensor], step: Tensor) -> list[Tensor]:
    """Times within a step, among which a polynomial is largest and smallest."""
    times = [torch.zeros_like(derivatives[0]), step.expand_as(derivatives[0])]
    if len(derivatives) == 3:  # v + a t + j t^2 / 2: a + j t = 0
        times.append(-derivatives[1] / derivatives[2])
    if len(derivatives) == 4:  # p: v + a t + j t^2 / 2 = 0, so that no root is a difference
        _, v, a, j = derivatives
        q = -(a + torch.where(a < 0, -1.0, 1.0) * (a * a - 2 * v * j).clamp(min=0).sqrt())
        times += [q / j, 2 * v / q]
    return [t.nan_to_num(0.0, 0.0, 0.0).clamp(min=0).minimum(step) for t in times]


def make_motion(
    position: Tensor, velocity: Tensor, acceleration: Tensor, jerk: Tensor, dt: Tensor
) -> Motion:
    """A motion of what was computed, and checked, together: to check it again takes 20 us."""
    if torch.compiler.is_compiling():
        return Motion(position, velocity, acceleration, jerk, dt)
    motion = object.__new__(Motion)
    motion.__dict__.update(
        position=position, velocity=velocity, acceleration=acceleration, jerk=jerk, dt=dt,
        start_time=None,
    )  # fmt: skip
    return motion


def _take_start(start: Any, position: Tensor) -> Tensor:
    time, batch = take_seconds("start_time of a motion", start, position), position.shape[:-2]
    if not fits_within(time.shape, batch):
        raise ArgumentError(
            "The start_time of a motion does not fit its batch.",
            given=f"start_time of shape {tuple(time.shape)} for a batch {tuple(batch)}",
            expected="a number, or one for each trajectory",
        )
    most = torch.finfo(torch.float64).max
    check_range("start_time of a motion", time, -most, most, "finite seconds")
    return time


def check_finite(motion: Motion) -> None:
    """Refuse a motion of numbers that are not finite, where they are known: they compare false."""
    for name in PARTS:
        odd = concrete(~torch.isfinite(getattr(motion, name)))
        if odd is not None and bool(odd.any()):
            raise ArgumentError(
                f"The {name} of the motion is not all finite.",
                given=f"NaN or infinity at {odd.nonzero()[0].tolist()} of {list(odd.shape)}",
            )


def check_dtype(dtype: Any) -> None:
    """Refuse what is not a floating dtype."""
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ArgumentTypeError(
            "A motion has a floating dtype.", given=repr(dtype), expected="torch.float64, ..."
        )


@checked
def concatenate(motions: Sequence[Motion]) -> Motion:
    """Motions one after another: each begins at the instant and place where the last one ends.

    The sample that two of them share is that of the later one. The start time is that of the first;
    a later motion has none, or zero, or that at which the one before it ends. Positions alone are
    compared: a velocity or an acceleration that jumps there stays a jump, which `Motion.violations`
    does not see.

    Arguments:
        motions: of one batch shape, dof, dtype and device.

    Raises:
        ArgumentError: none, or one that begins elsewhere, or at another instant, than the one
            before it ends.
        ArgumentTypeError: something that is not a motion.

    Example:
        >>> import torch
        >>> from pullback.trajectory import concatenate, minimum_jerk
        >>> there = minimum_jerk(torch.tensor([[0.0], [1.0]]), 1.0, samples=11)
        >>> back = minimum_jerk(torch.tensor([[1.0], [0.0]]), 2.0, samples=11)
        >>> both = concatenate([there, back])
        >>> both.horizon, round(both.times[-1].item(), 6)
        (21, 3.0)
    """
    if not len(motions):
        raise ArgumentTypeError("There is no motion to concatenate.", given=repr(motions))
    for before, after in itertools.pairwise(motions):
        _check_meeting(before, after)
    pieces = [*(motion[:-1] for motion in motions[:-1] if motion.horizon > 1), motions[-1]]
    parts = [torch.cat([getattr(piece, name) for piece in pieces], dim=-2) for name in PARTS]
    batch = motions[0].position.shape[:-2]
    steps = [m.dt if m.dt.ndim else m.dt.expand(m.horizon - 1) for m in motions]
    together = (
        [step.expand(*batch, -1) for step in steps] if any(s.ndim > 1 for s in steps) else steps
    )
    return Motion(*parts, dt=torch.cat(together, dim=-1), start_time=motions[0].start_time)


def _check_meeting(before: Motion, after: Motion) -> None:
    end, begin = before.position[..., -1, :].detach(), after.position[..., 0, :].detach()
    alike = end.shape == begin.shape and end.dtype == begin.dtype and end.device == begin.device
    if not alike:
        raise ArgumentError(
            "Motions of different kinds cannot be concatenated.",
            given=f"{tuple(end.shape)} {end.dtype} on {end.device} before "
            f"{tuple(begin.shape)} {begin.dtype} on {begin.device}",
            expected="one batch shape, dof, dtype and device",
        )
    apart = (end - begin).abs()
    # What a plan rounds goes with the farthest that it reaches; in float64 a solve loses more.
    reached = torch.maximum(*(m.position.detach().abs().amax(-2) for m in (before, after)))
    room = max(64 * torch.finfo(end.dtype).eps, 1e-12) * (1 + reached)
    if somewhere(~(apart <= room)):
        raise ArgumentError(
            "A motion begins elsewhere than the one before it ends.",
            given=f"up to {float(innermost(apart).max()):.3g} apart",
            mend="Plan the later motion from the last position of the earlier one.",
        )
    if after.start_time is None:
        return
    ends, begins = before.times[..., -1].detach(), after.start_time.detach()
    # What sums of steps round, and a microsecond, which stamps may.
    rounding = before.horizon * torch.finfo(before.dt.dtype).eps * ends.abs() + 1e-6
    if somewhere((begins != 0) & ((begins - ends).abs() > rounding)):
        raise ArgumentError(
            "A motion begins at another instant than the one before it ends.",
            given=f"{innermost(begins).tolist()} s after {innermost(ends).tolist()} s",
            mend="Put a motion that waits between them, or leave out the time: "
            "dataclasses.replace(motion, start_time=None).",
        )


def _is_constant(name: str, part: Any) -> bool:
    return name == "start_time" and part is None


register_dataclass(Motion, _FIELDS, _is_constant)
