"""`ScalePair` and `ScaleTracker`."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pullback.errors import ArgumentTypeError, UnsupportedError
from pullback.tensor import Function
from pullback.tracking._annotate import scale_text, std_of

__all__ = ["ScalePair", "ScaleTracker"]


@dataclass
class ScalePair:
    """The standard deviations of a tensor and of its gradient.

    Arguments:
        forward: that of the value.
        backward: that of the gradient.

    Example:
        >>> from pullback.compat.unit_scaling import ScalePair
        >>> print(ScalePair(1.25))
        (-> 1.25, <- n/a)
    """

    forward: float | None = None
    backward: float | None = None

    def __str__(self) -> str:
        return scale_text(self.forward, self.backward)


class ScaleTracker(Function):
    """Identity that records the standard deviation of its tensor and of the gradient.

    The scales are unbiased and read at once, one wait for the device each; for a tracker that
    never waits see `pullback.tracking.track`.

    Example:
        >>> import torch
        >>> from pullback.compat.unit_scaling import ScalePair, ScaleTracker
        >>> pair = ScalePair()
        >>> x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        >>> ScaleTracker.track(x, pair).backward(torch.tensor([2.0, 4.0, 6.0]))
        >>> print(pair)
        (-> 1.0, <- 2.0)
    """

    _direct = True  # to run its rules again would record again

    @staticmethod
    def forward(t: Tensor, scale_tracker: ScalePair) -> Tensor:
        """Return a view of ``t`` and record its scale."""
        if not isinstance(t, Tensor) or not (t.is_floating_point() or t.is_complex()):
            raise ArgumentTypeError(
                "ScaleTracker takes a floating or complex tensor.",
                given=f"dtype {t.dtype}" if isinstance(t, Tensor) else f"a {type(t).__name__}",
            )
        scale_tracker.forward = _read(t)
        return t.view_as(t)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the pair."""
        ctx.scale_tracker = inputs[1]

    @staticmethod
    # torch declares (ctx, *grad_outputs); the rule names its one cotangent.
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        """Return the cotangent and record its scale."""
        ctx.scale_tracker.backward = _read(cotangent)
        return cotangent, None

    @staticmethod
    # Written out: deriving it would run backward, and record a gradient that there was not.
    # pyrefly: ignore[bad-override]
    def jvp(ctx: Any, tangent: Tensor, scale_tracker: None) -> Tensor:
        """Return the tangent."""
        return tangent.view_as(tangent)

    @staticmethod
    def track(t: Tensor, scale_tracker: ScalePair) -> Tensor:
        """Return ``ScaleTracker.apply(t, scale_tracker)``.

        Arguments:
            t: shape (...), any floating or complex dtype.
            scale_tracker: where the scales are recorded.
        """
        return ScaleTracker.apply(t, scale_tracker)


def _read(tensor: Tensor) -> float:
    try:
        return std_of(tensor)
    except RuntimeError as error:  # a batched or fake tensor has no one number to read
        raise UnsupportedError(
            "ScaleTracker reads a number at once, which vmap and torch.compile do not allow.",
            mend="Use pullback.tracking.track(tensor, record), which works under both.",
        ) from error
