"""`Motion`: positions and their time derivatives at the samples of a trajectory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.torch import pytree

__all__ = ["Motion"]

_FIELDS = ("position", "velocity", "acceleration", "jerk", "dt")


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
            ``[..., horizon - 1]``.

    Raises:
        ArgumentError: the four sequences do not have one shape.

    Example:
        >>> import torch
        >>> from pullback.trajectory import Motion
        >>> still = torch.zeros(5, 7)
        >>> motion = Motion(still, still, still, still, torch.tensor(0.5))
        >>> motion.horizon, motion.dof, motion.times.tolist()
        (5, 7, [0.0, 0.5, 1.0, 1.5, 2.0])
    """

    position: Tensor
    velocity: Tensor
    acceleration: Tensor
    jerk: Tensor
    dt: Tensor

    def __post_init__(self) -> None:
        # Inside a pytree a leaf may be anything (an in_dim, a marker): only tensors are compared.
        parts = (self.position, self.velocity, self.acceleration, self.jerk)
        if not all(isinstance(part, Tensor) for part in parts):
            return
        if any(part.shape != self.position.shape for part in parts):
            raise ArgumentError(
                "A motion needs position, velocity, acceleration and jerk of one shape.",
                given=", ".join(str(tuple(part.shape)) for part in parts),
                expected="four times [..., horizon, dof]",
            )

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
        """Seconds since sample 0, ``[horizon]`` or ``[..., horizon]``."""
        if self.dt.ndim == 0:
            steps = torch.arange(self.horizon, dtype=self.dt.dtype, device=self.dt.device)
            return steps * self.dt
        return torch.nn.functional.pad(self.dt.cumsum(-1), (1, 0))


def _flatten(motion: Motion) -> tuple[list[Any], None]:
    return [getattr(motion, name) for name in _FIELDS], None


def _flatten_with_keys(motion: Motion) -> tuple[list[tuple[Any, Any]], None]:
    return [(pytree.GetAttrKey(name), getattr(motion, name)) for name in _FIELDS], None


def _unflatten(parts: Sequence[Any], _context: None) -> Motion:
    return Motion(*parts)


pytree.register_pytree_node(
    Motion,
    _flatten,
    _unflatten,  # pyrefly: ignore[bad-argument-type]  # torch types it as Iterable
    serialized_type_name="pullback.trajectory.Motion",
    flatten_with_keys_fn=_flatten_with_keys,
)
