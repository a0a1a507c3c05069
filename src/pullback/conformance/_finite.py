"""Finite differences with an error estimate, so that an honest derivative is never called wrong.

The central difference is taken at eight steps, each a quarter of the one before, and extrapolated
to a step of zero (Ridders, "Accurate computation of F'(x) and F'(x)F''(x)", Advances in Engineering
Software 4, 1982). The entry of the tableau that its neighbours agree with best is the estimate, and
the disagreement its error. One-sided differences tell a kink from a smooth point.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["Estimate", "Match", "compare", "differentiate", "inner"]

_STEPS = 8
_RATIO = 4.0
# Relative agreement asked of a correct derivative, above ten times the estimated error.
_RELATIVE = {torch.float64: 1e-5, torch.float32: 2e-2}


@dataclass(frozen=True)
class Estimate:
    """A directional derivative by finite differences.

    Arguments:
        value: the estimate of d/dt sum(weights * function(t)) at t = 0.
        error: its estimated absolute error.
        magnitude: the sum of the absolute values of the terms, the scale of a cancellation.
        smooth: whether the two one-sided differences agree.
        noise: an error that rounding alone explains, whatever the derivative.
    """

    value: float
    error: float
    magnitude: float
    smooth: bool
    noise: float = 0.0


Match = str  # "match", "mismatch" or "unclear"


def inner(first: torch.Tensor, second: torch.Tensor) -> float:
    """The real inner product Re(sum(conj(first) * second)) in float64.

    Example:
        >>> inner(torch.tensor([1j]), torch.tensor([2j]))
        2.0
    """
    if first.numel() == 0:
        return 0.0
    return float((_wide(first).conj() * _wide(second)).sum().real)


def differentiate(
    function: Callable[[float], torch.Tensor], weights: torch.Tensor, step: float = 2.0**-6
) -> Estimate:
    """The derivative of ``sum(weights * function(t))`` at ``t = 0``.

    Arguments:
        function: maps a real number to a real vector, shape ``(n,)``.
        weights: real vector, shape ``(n,)``.
        step: the largest step.

    Returns:
        The estimate with its error; the error is infinite when the function is not finite.

    Example:
        >>> x = torch.tensor([2.0], dtype=torch.float64)
        >>> found = differentiate(lambda t: (x + t) ** 3, torch.ones(1, dtype=torch.float64))
        >>> round(found.value, 9)
        12.0
    """
    base = function(0.0)
    precision = torch.finfo(base.dtype).eps
    size = float((weights * base).abs().sum())
    rows: list[list[float]] = []
    best = (float("inf"), 0.0, 0.0)
    gaps: list[tuple[float, float]] = []
    for level in range(_STEPS):
        h = step / _RATIO**level
        plus, minus = function(h), function(-h)
        terms = weights * (plus - minus) / (2 * h)
        row = [float(terms.sum())]
        for order, previous in enumerate(rows[-1] if rows else [], start=1):
            factor = _RATIO ** (2 * order)
            row.append((factor * row[-1] - previous) / (factor - 1))
        best = min(best, _judge(rows, row, float(terms.abs().sum()), 4 * precision * size / h))
        gaps.append((abs(float((weights * (plus + minus - 2 * base)).sum())) / h, size / h))
        rows.append(row)
    error, value, magnitude = best
    smooth = _is_smooth([(gap, 8 * precision * noise) for gap, noise in gaps], magnitude)
    finite = math.isfinite(error) and math.isfinite(value)
    return Estimate(value, error if finite else math.inf, magnitude, smooth, precision**0.5 * size)


def _judge(
    rows: list[list[float]], row: list[float], magnitude: float, noise: float
) -> tuple[float, float, float]:
    """The best entry of a row: error, value, magnitude."""
    best = (float("inf"), 0.0, 0.0)
    if not rows:
        return best
    for order in range(1, len(row)):
        error = max(abs(row[order] - row[order - 1]), abs(row[order] - rows[-1][order - 1]))
        best = min(best, (error + noise, row[order], magnitude))
    return best


def _is_smooth(gaps: list[tuple[float, float]], magnitude: float) -> bool:
    """Whether the gap between one-sided differences shrinks with the step, as h f''(x) does."""
    (middle, middle_noise), (last, last_noise) = gaps[-3], gaps[-1]
    floor = 1e-5 * magnitude + last_noise + middle_noise
    return last <= floor or last <= 0.3 * middle


def compare(estimate: Estimate, value: float, magnitude: float, dtype: torch.dtype) -> Match:
    """Whether a derivative agrees with its estimate.

    Arguments:
        estimate: by finite differences.
        value: the derivative to be judged.
        magnitude: the sum of the absolute values of its terms.
        dtype: the precision the function computes in.

    Returns:
        ``"match"``, ``"mismatch"``, or ``"unclear"`` at a kink or where the estimate is too rough.

    Example:
        >>> compare(Estimate(1.0, 1e-12, 1.0, True), 1.5, 1.5, torch.float64)
        'mismatch'
    """
    scale = max(estimate.magnitude, magnitude)
    if estimate.error == float("inf"):
        return "unclear"
    if estimate.error > max(1e-2 * scale, estimate.noise):
        return "unclear"
    tolerance = _RELATIVE.get(dtype, 0.1) * scale + 10 * estimate.error
    if abs(value - estimate.value) <= tolerance:
        return "match"
    if not estimate.smooth or estimate.error > 1e-2 * scale:
        return "unclear"
    return "mismatch"


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
