"""`ScalePair` and `ScaleTracker`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.compat.unit_scaling._std import std_tensor
from pullback.errors import ArgumentTypeError
from pullback.tensor import Function
from pullback.tracking.measure._layout import Direction
from pullback.tracking.run._identity import Ticket
from pullback.tracking.watch._annotate import scale_text
from pullback.tracking.watch._operators import follow_operator, observe_operator
from pullback.tracking.watch._store import register_store
from pullback.tracking.watch._track import Track

__all__ = ["ScalePair", "ScaleTracker"]


class _Number:
    """A number of a pair, which stays on its device until somebody looks at it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, pair: Any, owner: Any = None) -> Any:
        if pair is None:
            return None  # what the dataclass takes for its default
        value = vars(pair)[self._name]
        if isinstance(value, Tensor):
            value = vars(pair)[self._name] = float(value)
        return value

    def __set__(self, pair: Any, value: Any) -> None:
        vars(pair)[self._name] = value


@dataclass
class ScalePair:
    """The standard deviations of a tensor and of its gradient.

    A tracker leaves its numbers on the device; they are read when they are looked at.

    Arguments:
        forward: that of the value.
        backward: that of the gradient.

    Example:
        >>> from pullback.compat.unit_scaling import ScalePair
        >>> print(ScalePair(1.25))
        (-> 1.25, <- n/a)
    """

    forward: float | None = _Number()  # type: ignore[assignment]  # a descriptor; it gives None
    backward: float | None = _Number()  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self._handle = register_store(self)  # by which compiled code finds it, as a tracker's store

    def __reduce__(self) -> Any:  # a copy has a handle of its own
        return type(self), (self.forward, self.backward)

    def __str__(self) -> str:
        return scale_text(self.forward, self.backward)

    def observe(self, values: Tensor, *_: Any) -> Ticket:
        """Record the scale of a value."""
        self.forward = std_tensor(values)  # type: ignore[assignment]  # read when it is looked at
        return Ticket(0, 0, 0, False, True)

    def follow(
        self,
        values: Tensor,
        name: str,
        ticket: Ticket,
        order: int,
        direction: Direction,
    ) -> None:
        """Record the scale of a gradient; tangents and gradients of gradients have no place."""
        if direction == "backward" and order == 1:
            self.backward = std_tensor(values)  # type: ignore[assignment]


class ScaleTracker(Function):
    """Identity that records the standard deviation of its tensor and of the gradient.

    The scales are unbiased, and read from the device when the pair is looked at. Under vmap they
    are those of the whole batch.

    Example:
        >>> import torch
        >>> from pullback.compat.unit_scaling import ScalePair, ScaleTracker
        >>> pair = ScalePair()
        >>> x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        >>> ScaleTracker.track(x, pair).backward(torch.tensor([2.0, 4.0, 6.0]))
        >>> print(pair)
        (-> 1.0, <- 2.0)
    """

    @staticmethod
    def forward(ctx: Any, t: Tensor, scale_tracker: ScalePair) -> Tensor:
        """Return a view of ``t`` and record its scale.

        Arguments:
            ctx: the context, which keeps the pair under the same name.
            t: shape (...), any floating or complex dtype.
            scale_tracker: where the scales are recorded.
        """
        ctx.scale_tracker = scale_tracker
        _check(t, scale_tracker)
        observe_operator(t.detach(), scale_tracker._handle, "", "forward")
        return t.view_as(t)

    @staticmethod
    def backward(ctx: Any, t: Tensor) -> tuple[Tensor, None, None]:
        """Return the cotangent and record its scale.

        Arguments:
            ctx: the context of forward.
            t: the gradient of the result.
        """
        ticket = torch.zeros(6, dtype=torch.int64)  # a pair has no use for it
        follow_operator(t.detach(), ticket, ctx.scale_tracker._handle, "", "backward", 1)
        return t, None, None

    @classmethod
    def apply(cls, t: Tensor, scale_pair: ScalePair) -> Any:
        """Return a view of ``t``; the scales of it and of its gradient are recorded.

        Arguments:
            t: shape (...), any floating or complex dtype.
            scale_pair: where the scales are recorded.

        Raises:
            ArgumentTypeError: no floating or complex tensor, or no `ScalePair`.
        """
        if cls.forward is not ScaleTracker.forward or cls.backward is not ScaleTracker.backward:
            return super().apply(t, scale_pair)
        _check(t, scale_pair)
        return Track.apply(t, scale_pair._handle, "", False)[0]

    @staticmethod
    def track(t: Tensor, scale_tracker: ScalePair) -> Tensor:
        """Return ``ScaleTracker.apply(t, scale_tracker)``.

        Arguments:
            t: shape (...), any floating or complex dtype.
            scale_tracker: where the scales are recorded.
        """
        return ScaleTracker.apply(t, scale_tracker)


def _check(t: Any, pair: Any) -> None:
    """Refuse what cannot be tracked."""
    if not isinstance(t, Tensor) or not (t.is_floating_point() or t.is_complex()):
        raise ArgumentTypeError(
            "ScaleTracker takes a floating or complex tensor.",
            given=f"dtype {t.dtype}" if isinstance(t, Tensor) else f"a {type(t).__name__}",
        )
    if not isinstance(pair, ScalePair):
        raise ArgumentTypeError(
            "ScaleTracker records in a ScalePair.", given=f"a {type(pair).__name__}"
        )
