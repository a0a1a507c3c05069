"""`Spline`: a piecewise polynomial in time, with its derivatives at any times."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal.kernels._shapes import broadcast_shapes
from pullback.internal.torch import innermost
from pullback.trajectory._checks import check_device, check_floating, somewhere, wide_dtype
from pullback.trajectory._motion import Motion
from pullback.trajectory._pytree import register_dataclass
from pullback.trajectory._seconds import check_increasing, take_seconds

__all__ = ["Spline"]

# Of its duration, how far outside of a spline a rounded time may lie.
_OUTSIDE = 1 / 128


@dataclass(frozen=True, eq=False)
class Spline:
    """A piecewise polynomial of time; `bspline` and `quintic` make it.

    On segment ``i`` the position is ``sum_k coefficients[i, k] s^k`` with
    ``s = (t - knots[i]) / (knots[i + 1] - knots[i])`` between 0 and 1. A spline is a pytree.

    Arguments:
        knots: ``[..., segments + 1]`` seconds, increasing.
        coefficients: ``[..., segments, degree + 1, dof]``, in the unit of a joint.

    Raises:
        ArgumentError: the sizes do not fit.

    Example:
        >>> import torch
        >>> from pullback.trajectory import quintic
        >>> spline = quintic(torch.tensor([[0.0], [1.0]]), [0.0, 2.0])
        >>> motion = spline.sample([0.0, 1.0, 2.0])
        >>> motion.position.squeeze().tolist(), motion.velocity.squeeze().tolist()
        ([0.0, 0.5, 1.0], [0.0, 0.9375, 0.0])
    """

    knots: Tensor
    coefficients: Tensor

    def __post_init__(self) -> None:
        # Inside a pytree a leaf may be anything (an in_dim, a marker): only tensors are compared.
        if not isinstance(self.knots, Tensor) or not isinstance(self.coefficients, Tensor):
            return
        fits = self.coefficients.dim() >= 3 and self.knots.dim() >= 1
        if not fits or self.knots.shape[-1] != self.coefficients.shape[-3] + 1:
            raise ArgumentError(
                "The knots and coefficients of a spline do not fit.",
                given=f"knots {tuple(self.knots.shape)}, "
                f"coefficients {tuple(self.coefficients.shape)}",
                expected="[..., segments + 1] and [..., segments, degree + 1, dof]",
            )

    def sample(self, times: Tensor | Sequence[float]) -> Motion:
        r"""Position, velocity, acceleration and jerk at any times, differentiable in the times.

        .. math:: q^{(m)}(t) = w_i^{-m} \sum_{k \ge m} \frac{k!}{(k-m)!} c_{ik} s^{k-m}

        At a knot the right segment counts, at the last knot the last one.

        Arguments:
            times: ``[samples]`` or ``[..., samples]`` seconds, increasing, between the first and
                the last knot.

        Returns:
            a motion of shape ``[..., samples, dof]`` in the dtype of the coefficients.

        Raises:
            ArgumentTypeError: the times are not numbers or a floating tensor.
            ArgumentError: times or knots that do not increase, times outside the spline.
        """
        times = self._check(times)
        width = self.knots.diff(dim=-1)
        inner = self.knots[..., 1:-1].detach()
        segment = _find_segments(inner, times.detach())
        batch = broadcast_shapes(segment.shape[:-1], self.coefficients.shape[:-3])
        segment = segment.expand(*batch, segment.shape[-1])
        width = _pick(width, segment)
        s = (times - _pick(self.knots[..., :-1], segment)) / width
        rows = self.coefficients.flatten(-2)
        index = segment.unsqueeze(-1).expand(*segment.shape, rows.shape[-1])
        rows = rows.expand(*batch, *rows.shape[-2:]).gather(-2, index)
        coefficients = rows.unflatten(-1, self.coefficients.shape[-2:])
        dtype = self.coefficients.dtype
        parts = [
            (_derivative(coefficients, s, order) / width.unsqueeze(-1) ** order).to(dtype)
            for order in range(4)
        ]
        seconds = wide_dtype(dtype)
        first = times[..., 0].to(torch.float64) if times.shape[-1] else None
        return Motion(*parts, dt=times.diff(dim=-1).to(seconds), start_time=first)

    def _check(self, times: Any) -> Tensor:
        check_floating("knots", self.knots)
        check_floating("coefficients", self.coefficients)
        check_increasing("knots", self.knots)
        times = take_seconds("times", times, self.coefficients, several=True)
        if times.dim() < 1:
            raise ArgumentTypeError(
                "The times are not a sequence.",
                given="one number",
                expected="seconds, as a list of numbers or a floating tensor [..., samples]",
            )
        check_device("times", times, self.coefficients, "coefficients of the spline")
        batch = times.shape[:-1]
        try:
            broadcast_shapes(batch, self.knots.shape[:-1], self.coefficients.shape[:-3])
        except RuntimeError:
            raise ArgumentError(
                "The batch of the times does not fit that of the spline.",
                given=f"{tuple(batch)} beside {tuple(self.coefficients.shape[:-3])}",
            ) from None
        check_increasing("times", times)
        self._check_range(times)
        return times

    def _check_range(self, times: Tensor) -> None:
        if not times.shape[-1]:
            return
        first, last = self.knots[..., 0], self.knots[..., -1]
        # The end of a linspace may lie a rounding error outside.
        coarse = max(torch.finfo(t.dtype).eps for t in (times, self.knots))
        # Coarse times far from zero may lie anywhere: beyond a part of the spline they are refused.
        slack = torch.minimum(
            8 * coarse * torch.maximum(first.abs(), last.abs()), (last - first) * _OUTSIDE
        )
        if somewhere(times[..., 0] < first - slack) or somewhere(times[..., -1] > last + slack):
            values, knots = innermost(times), innermost(self.knots)
            raise ArgumentError(
                "A time lies outside the spline.",
                given=f"times from {values.min():.6g} to {values.max():.6g} s",
                expected=f"times between {knots.min():.6g} and {knots.max():.6g} s",
            )


def _find_segments(inner: Tensor, times: Tensor) -> Tensor:
    """How many of the inner knots each time has reached: in a time that grows with a logarithm."""
    dtype = torch.promote_types(inner.dtype, times.dtype)
    if inner.dim() > 1:
        batch = broadcast_shapes(inner.shape[:-1], times.shape[:-1])
        inner = inner.expand(*batch, inner.shape[-1])
        times = times.expand(*batch, times.shape[-1])
    # Copies: what is contiguous for one trajectory may not be so for a batch that vmap hides.
    whole = {"memory_format": torch.contiguous_format}
    return torch.searchsorted(
        inner.to(dtype).clone(**whole), times.to(dtype).clone(**whole), right=True
    )


def _pick(values: Tensor, segment: Tensor) -> Tensor:
    batch = broadcast_shapes(values.shape[:-1], segment.shape[:-1])
    index = segment.expand(*batch, segment.shape[-1])
    return values.expand(*batch, values.shape[-1]).gather(-1, index)


def _derivative(coefficients: Tensor, s: Tensor, order: int) -> Tensor:
    """The derivative in ``s``, by Horner's rule: ``[..., samples, dof]``."""
    degree = coefficients.shape[-2] - 1
    total = torch.zeros_like(coefficients[..., 0, :])
    for k in range(degree, order - 1, -1):
        total = total * s.unsqueeze(-1) + math.perm(k, order) * coefficients[..., k, :]
    return total


register_dataclass(Spline, ("knots", "coefficients"), lambda _name, _part: False)
