"""`Limits`: where a joint may be, and how fast, how hard and how suddenly it may move."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal.kernels._shapes import broadcast_shapes
from pullback.trajectory._checks import (
    as_tensor,
    check_choice,
    check_fit,
    is_number,
    plain,
    somewhere,
)
from pullback.trajectory._state import register_dataclass

__all__ = ["KINDS", "Limit", "Limits", "check_limits", "range_of"]

KINDS = ("velocity", "acceleration", "jerk", "position")

Limit = Tensor | float | list[float] | tuple[Any, Any]


@dataclass(frozen=True, eq=False)
class Limits:
    """Ranges of position, velocity, acceleration and jerk; what is left out is unlimited.

    One magnitude ``m`` means from ``-m`` to ``m``; a tuple of two is the lower and the upper end.
    A `Limits` is a pytree whose leaves are its tensors.

    Arguments:
        velocity: a positive magnitude, or ``(lower, upper)``, per second.
        acceleration: the same, per second squared.
        jerk: the same, per second cubed.
        position: ``(lower, upper)``, each a number, ``[dof]``, ``[..., dof]`` or a list with one
            number for each joint, in the unit of a joint; or one magnitude.
        between: whether the range of the position is kept between samples too, by the control
            points of each step. Ends may lie on a limit; points between them then need room of a
            millionth of the range, but in `minimum_time`. The other ranges always hold at every
            instant.

    Raises:
        ArgumentError: a magnitude that is not positive, a range that is empty, or a ``between``
            that is neither True nor False.
        ArgumentTypeError: a limit that is no number, tensor, list or pair of them.

    Example:
        >>> Limits(velocity=2.0, jerk=50.0).given
        ('velocity', 'jerk')
        >>> Limits(position=(-1.0, 2.5), velocity=(-1.0, 2.0)).given
        ('velocity', 'position')
    """

    velocity: Limit | None = None
    acceleration: Limit | None = None
    jerk: Limit | None = None
    position: Limit | None = None
    between: bool = False

    def __post_init__(self) -> None:
        check_choice("value of between", self.between, (False, True))
        for kind in self.given:
            value = getattr(self, kind)
            value = _pair(kind, value) if isinstance(value, tuple) else _number(kind, value)
            object.__setattr__(self, kind, value)
            _check_range(kind, value)

    @property
    def given(self) -> tuple[str, ...]:
        """The kinds that are limited."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None)


def _number(kind: str, value: Any) -> Any:
    """One end: a float, or a tensor; anything that may stand for one in a pytree is let through."""
    value = plain(value)
    if is_number(value):
        return float(value)
    none = (list, Tensor, str, bytes, bool, complex, dict, set, type(None))
    if isinstance(value, none):
        return as_tensor(f"limit on {kind}", value, torch.float64, torch.device("cpu"))
    return value


def _pair(kind: str, value: tuple[Any, ...]) -> tuple[Any, Any]:
    if len(value) != 2:
        raise ArgumentError(
            f"The range of {kind} is not a pair.",
            given=repr(value),
            expected="(lower, upper); a list has one magnitude for each joint",
        )
    lower, upper = (_number(kind, end) for end in value)
    if isinstance(lower, float) and isinstance(upper, Tensor):
        lower = torch.full_like(upper, lower)
    if isinstance(upper, float) and isinstance(lower, Tensor):
        upper = torch.full_like(lower, upper)
    return lower, upper


def _check_range(kind: str, value: Any) -> None:
    """Refuse a magnitude that is not positive, a range that is empty, and ends that do not fit."""
    ends = value if isinstance(value, tuple) else (0.0, value)
    # Inside a pytree a leaf may be anything (an in_dim, a marker): only tensors are read.
    if not all(isinstance(end, (float, Tensor)) for end in ends):
        return
    lower, upper = (
        end if isinstance(end, Tensor) else torch.tensor(end, dtype=torch.float64, device="cpu")
        for end in ends
    )
    try:
        broadcast_shapes(lower.shape, upper.shape)
        fits = lower.device == upper.device or not isinstance(value, tuple)
    except RuntimeError:
        fits = False
    if not fits:
        raise ArgumentError(
            f"The two ends of the range of {kind} do not fit each other.",
            given=f"{tuple(lower.shape)} on {lower.device}, {tuple(upper.shape)} on {upper.device}",
            expected="shapes that broadcast, on one device",
        )
    # Below vmap the two may be batched unlike each other, so they are compared above it.
    if not somewhere(~((lower < upper) & torch.isfinite(lower) & torch.isfinite(upper))):
        return
    if isinstance(value, tuple):
        raise ArgumentError(
            f"The range of {kind} is empty or not finite.",
            given=repr(value),
            expected="lower < upper, both finite",
        )
    raise ArgumentError(
        f"The limit on {kind} must be positive.",
        given=repr(value),
        expected="a finite magnitude > 0, a pair (lower, upper), or None for no limit",
    )


def check_limits(limits: Any, like: Tensor) -> None:
    """Refuse what is not a `Limits` that fits points ``[..., count, dof]``."""
    if not isinstance(limits, Limits):
        raise ArgumentTypeError(
            "The limits are not a Limits.",
            given=type(limits).__name__,
            expected="pullback.trajectory.Limits(velocity=..., acceleration=..., jerk=...)",
        )
    for kind in limits.given:
        value = getattr(limits, kind)
        for end in value if isinstance(value, tuple) else (value,):
            tensor = as_tensor(f"limit on {kind}", end, torch.float64, like.device)
            if tensor.dim():
                check_fit(f"limit on {kind}", tensor, like)
        _check_range(kind, value)  # again: what a transform makes from a pytree is not constructed


def range_of(limits: Limits, kind: str, like: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of a range, which must be given, as float64 ``[..., dof]`` or ``[..., 1]``."""
    value = getattr(limits, kind)
    lower, upper = value if isinstance(value, tuple) else (None, value)
    upper = _end(upper, like)
    return (-upper if lower is None else _end(lower, like)), upper


def _end(value: Any, like: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        value = torch.full((), float(value), dtype=torch.float64, device=like.device)
    value = value.to(torch.float64)
    return value if value.dim() else value.unsqueeze(-1)


register_dataclass(Limits, (*KINDS, "between"))
