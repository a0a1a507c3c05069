"""`Limits`: how fast, how hard and how suddenly a joint may move."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import GetAttrKey, register_pytree_node

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory._knots import broadcast_batch, concrete

__all__ = ["KINDS", "Limits", "aim_of", "check_limits", "limit_of"]

KINDS = ("velocity", "acceleration", "jerk")


@dataclass(frozen=True, eq=False)
class Limits:
    """The largest magnitudes of velocity, acceleration and jerk; one left out is unlimited.

    A `Limits` is a pytree whose leaves are its tensors.

    Arguments:
        velocity: a number, ``[dof]`` or ``[..., dof]``, positive, in radians per second.
        acceleration: the same, per second squared.
        jerk: the same, per second cubed.

    Raises:
        ArgumentError: a limit that is not positive.
        ArgumentTypeError: a limit that is neither a number nor a floating tensor.

    Example:
        >>> Limits(velocity=2.0, jerk=50.0).given
        ('velocity', 'jerk')
    """

    velocity: Tensor | float | None = None
    acceleration: Tensor | float | None = None
    jerk: Tensor | float | None = None

    def __post_init__(self) -> None:
        for kind in KINDS:
            _check(kind, getattr(self, kind))

    @property
    def given(self) -> tuple[str, ...]:
        """The kinds that are limited."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None)


def _check(kind: str, value: Any) -> None:
    if isinstance(value, (str, bytes, bool)) or (
        isinstance(value, Tensor) and not value.dtype.is_floating_point
    ):
        raise ArgumentTypeError(
            f"The limit on {kind} is not a number.",
            given=repr(value),
            expected="a number, a floating tensor or None",
        )
    if isinstance(value, (int, float)):
        positive = value > 0 and math.isfinite(value)
    else:
        # Inside a pytree a leaf may be anything (an in_dim, a marker): only tensors are read.
        known = concrete(value) if isinstance(value, Tensor) else None
        positive = known is None or bool(((known > 0) & torch.isfinite(known)).all())
    if not positive:
        raise ArgumentError(
            f"The limit on {kind} must be positive.",
            given=repr(value),
            expected="a finite magnitude > 0, or None for no limit",
        )


def check_limits(limits: Any, like: Tensor) -> None:
    """Refuse what is not a `Limits` that fits points ``[..., count, dof]``.

    Raises:
        ArgumentTypeError: not a `Limits`.
        ArgumentError: another dof, batch or device.
    """
    if not isinstance(limits, Limits):
        raise ArgumentTypeError(
            "The limits are not a Limits.",
            given=type(limits).__name__,
            expected="pullback.trajectory.Limits(velocity=..., acceleration=..., jerk=...)",
        )
    for kind in limits.given:
        value = getattr(limits, kind)
        if not isinstance(value, Tensor) or not value.dim():
            continue
        if value.device != like.device:
            raise ArgumentError(
                f"The limit on {kind} lies on another device than the points.",
                given=str(value.device),
                expected=str(like.device),
            )
        if value.shape[-1] not in (1, like.shape[-1]):
            raise ArgumentError(
                f"The limit on {kind} has another number of joints than the points.",
                given=f"{tuple(value.shape)} beside points {tuple(like.shape)}",
                expected=f"a number or [..., {like.shape[-1]}]",
            )
        broadcast_batch(f"limit on {kind}", value.shape[:-1], like)


def limit_of(limits: Limits, kind: str, like: Tensor) -> Tensor:
    """A limit, which must be given, as float64 ``[..., dof]`` or ``[..., 1]``."""
    value = getattr(limits, kind)
    if not isinstance(value, Tensor):
        value = torch.full((), float(value), dtype=torch.float64, device=like.device)
    value = value.to(torch.float64)
    return value if value.dim() else value.unsqueeze(-1)


def aim_of(limits: Limits, kind: str, like: Tensor) -> Tensor:
    """The limit to solve for: less by two parts in ten million.

    So the result keeps the limit as it was given, whatever float32 and the solver round.
    """
    return limit_of(limits, kind, like) * (1 - 2e-7)


def _is_leaf(part: Any) -> bool:
    return part is not None and not isinstance(part, (int, float))


def _flatten(limits: Limits) -> tuple[list[Any], tuple[Any, ...]]:
    parts = [getattr(limits, kind) for kind in KINDS]
    context = tuple("leaf" if _is_leaf(part) else part for part in parts)
    return [part for part in parts if _is_leaf(part)], context


def _flatten_with_keys(limits: Limits) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
    parts, context = _flatten(limits)
    names = [kind for kind in KINDS if _is_leaf(getattr(limits, kind))]
    return [(GetAttrKey(n), part) for n, part in zip(names, parts, strict=True)], context


def _unflatten(leaves: Any, context: tuple[Any, ...]) -> Limits:
    remaining = iter(leaves)
    return Limits(*(next(remaining) if part == "leaf" else part for part in context))


register_pytree_node(
    Limits,
    _flatten,
    _unflatten,
    serialized_type_name="pullback.trajectory.Limits",
    flatten_with_keys_fn=_flatten_with_keys,
)
