"""`Motion`: positions and their time derivatives at the samples of a trajectory."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory._between import excess_between
from pullback.trajectory._checks import check_floating, check_named_device, fits_within, wide_dtype
from pullback.trajectory._limits import Limits, check_limits
from pullback.trajectory._pytree import register_dataclass
from pullback.trajectory._seconds import check_range, check_steps, check_steps_shape, take_seconds
from pullback.trajectory._state import PARTS

__all__ = ["Motion", "make_motion"]

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
        >>> motion.to(dtype=torch.float64).dt.dtype
        torch.float64
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
            ArgumentError: limits that do not fit the motion.
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
        return excess_between([getattr(self, name) for name in PARTS], self.dt, limits)

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
        if not (dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point)):
            raise ArgumentTypeError(
                "A motion has a floating dtype.", given=repr(dtype), expected="torch.float64, ..."
            )
        check_named_device(device)
        parts = {name: getattr(self, name).to(device=device, dtype=dtype) for name in PARTS}
        steps = self.dt.to(device=device, dtype=None if dtype is None else wide_dtype(dtype))
        start = None if self.start_time is None else self.start_time.to(device=device)
        return replace(self, **parts, dt=steps, start_time=start)


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


def _is_constant(name: str, part: Any) -> bool:
    return name == "start_time" and part is None


register_dataclass(Motion, _FIELDS, _is_constant)
