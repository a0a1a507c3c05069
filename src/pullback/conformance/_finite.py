"""Finite differences with an error estimate, so that an honest derivative is never called wrong.

Every entry of the function is judged by itself. Its central difference is taken at eight steps,
each a quarter of the one before, and extrapolated to a step of zero (Ridders, "Accurate
computation of F'(x) and F'(x)F''(x)", Advances in Engineering Software 4, 1982). The entry of the
tableau that its neighbours agree with best is the estimate, and the disagreement its error.
One-sided differences tell a kink from a smooth point, and the finest differences a jump: an
estimate that they contradict agreed with its neighbours by chance. An entry at an edge is not
settled and is left out of what is compared, so that the settled ones are not lost with it.

A sum of entries with random weights has the error of a random walk: errors add up as the root of
the sum of squares. An error in one entry of many thousand then stands out, as it cannot where the
magnitudes are added up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pullback.errors import ArgumentError

__all__ = ["Estimate", "Match", "Slopes", "compare", "differentiate", "inner", "slopes"]

_STEPS = 8
_RATIO = 4.0
# How many of the finest steps must agree with the estimate.
_FINE = 3
# Relative agreement asked of a correct derivative, above ten times the estimated error.
_RELATIVE = {torch.float64: 1e-5, torch.float32: 5e-3}


@dataclass(frozen=True)
class Estimate:
    """A directional derivative by finite differences.

    Arguments:
        value: the estimate of d/dt sum(weights * function(t)) at t = 0.
        error: its estimated absolute error.
        magnitude: the scale of a cancellation among its terms.
        smooth: whether the entries it is made of are settled.
        noise: an error that rounding alone explains, whatever the derivative.
    """

    value: float
    error: float
    magnitude: float
    smooth: bool
    noise: float = 0.0


@dataclass(frozen=True)
class Slopes:
    """The derivative of each entry of a real vector by finite differences.

    Arguments:
        value: the estimates, shape ``(n,)``, float64.
        error: their estimated absolute errors; infinite where nothing is finite.
        settled: where the estimate can be relied upon: no kink, no jump, little noise.
        noise: the errors that rounding alone explains.
    """

    value: torch.Tensor
    error: torch.Tensor
    settled: torch.Tensor
    noise: torch.Tensor

    def weigh(self, weights: torch.Tensor, *, coherent: bool = False) -> Estimate:
        """The derivative of ``sum(weights * function)``, with weights that are random.

        Arguments:
            weights: real vector, shape ``(n,)``; entries that are not settled need a zero.
            coherent: the weights were chosen so that the terms add up; magnitudes and errors then
                add up too, where they otherwise walk at random.

        Returns:
            The estimate.
        """
        used = weights != 0
        if weights.numel() and not used.any():
            return Estimate(0.0, math.inf, 0.0, smooth=False)  # nothing is settled
        w = weights[used].double()
        value, error, noise = self.value[used], self.error[used], self.noise[used]
        if used.any() and not self.settled[used].all():
            # Said as it is: an edge lies within the steps.
            return Estimate(_total(w * value), _total((w * error).abs()), _total((w * value).abs()),
                            smooth=False, noise=_root(w * noise))  # fmt: skip
        size = _total if coherent else _root
        return Estimate(
            _total(w * value), size((w * error).abs()), size((w * value).abs()),
            True, size((w * noise).abs()),
        )  # fmt: skip


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


def slopes(
    function: Callable[[float], torch.Tensor], step: float = 2.0**-6, grain: float = 0.0
) -> Slopes:
    """The derivative of every entry of ``function(t)`` at ``t = 0``.

    Arguments:
        function: maps a real number to a real vector, shape ``(n,)``.
        step: the largest step.
        grain: the precision of its values, where that is less than their dtype's.

    Returns:
        The estimates with their errors.

    Raises:
        ArgumentError: how many values there are depends on ``t``.

    Example:
        >>> x = torch.tensor([2.0, 0.0], dtype=torch.float64)
        >>> found = slopes(lambda t: (x + t).abs())
        >>> found.settled.tolist(), round(found.value[0].item(), 9)
        ([True, False], 1.0)
    """
    first = function(0.0)
    eps = max(torch.finfo(first.dtype).eps, grain)
    base = first.double()
    size = base.abs()
    value, error = torch.zeros_like(base), torch.full_like(base, math.inf)
    previous: list[torch.Tensor] = []
    centrals: list[torch.Tensor] = []
    gaps: list[torch.Tensor] = []
    for level in range(_STEPS):
        h = step / _RATIO**level
        plus, minus = function(h).double(), function(-h).double()
        if plus.shape != base.shape or minus.shape != base.shape:
            raise ArgumentError("The function gives another number of values beside the point.")
        size = torch.maximum(size, torch.maximum(plus.abs(), minus.abs()).nan_to_num())
        row = [(plus - minus) / (2 * h)]
        noise = 2 * eps * (size + row[0].abs()) / h
        for order, before in enumerate(previous, start=1):
            factor = _RATIO ** (2 * order)
            row.append((factor * row[-1] - before) / (factor - 1))
            apart = torch.maximum((row[order] - row[order - 1]).abs(), (row[order] - before).abs())
            better = apart + noise < error
            value = torch.where(better, row[order], value)
            error = torch.where(better, apart + noise, error)
        previous = row
        centrals.append(row[0])
        gaps.append((plus + minus - 2 * base).abs() / h)
    settled = _settled(value, error, centrals, gaps, _noise(gaps, size, eps, step), step)
    return Slopes(value, error, settled, eps**0.5 * size)


def _noise(gaps: list[torch.Tensor], size: torch.Tensor, eps: float, step: float) -> torch.Tensor:
    """The noise of each entry: of rounding, or, where most entries have more, what they have.

    An iterative forward repeats itself to its own tolerance only. That is seen in second
    differences that stay where they are as the step shrinks, as those of a kink or a slope do not.
    """
    third, second, first = (gaps[-k] * step / _RATIO ** (_STEPS - k) for k in (3, 2, 1))
    stays = (first > 0.4 * second) & (second > 0.4 * third)
    known = (size > 0) & first.isfinite()
    seen = torch.where(stays[known], first[known] / size[known], 0.0)
    return max(eps, float(seen.median()) if len(seen) else 0.0) * size


def _settled(  # noqa: PLR0917 - the parts of one tableau
    value: torch.Tensor, error: torch.Tensor, centrals: list[torch.Tensor],
    gaps: list[torch.Tensor], noise: torch.Tensor, step: float,
) -> torch.Tensor:  # fmt: skip
    """Where the estimate agrees with the finest differences, from both sides, and is exact."""
    settled = error.isfinite() & value.isfinite()
    typical = value[settled].square().mean().sqrt() if settled.any() else value.new_zeros(())
    scale = value.abs() + 1e-3 * typical
    settled &= error <= torch.maximum(1e-2 * (value.abs() + 0.1 * typical), 1e-8 * noise)
    for level in range(_STEPS - _FINE, _STEPS):
        rounding = 8 * noise * _RATIO**level / step
        apart = (centrals[level] - value).abs()
        settled &= apart <= 10 * error + rounding + 1e-4 * scale
    middle, last = gaps[-3], gaps[-1]
    rounding = 8 * noise * (_RATIO ** (_STEPS - 1) + _RATIO ** (_STEPS - 3)) / step
    return settled & ((last <= 1e-5 * scale + rounding) | (last <= 0.3 * middle))


def differentiate(
    function: Callable[[float], torch.Tensor], weights: torch.Tensor, step: float = 2.0**-6
) -> Estimate:
    """The derivative of ``sum(weights * function(t))`` at ``t = 0``, with entries at edges.

    Arguments:
        function: maps a real number to a real vector, shape ``(n,)``.
        weights: real vector, shape ``(n,)``.
        step: the largest step.

    Returns:
        The estimate with its error; it is not smooth where an entry is not settled, and its error
        is infinite when the function is not finite.

    Example:
        >>> x = torch.tensor([2.0], dtype=torch.float64)
        >>> found = differentiate(lambda t: (x + t) ** 3, torch.ones(1, dtype=torch.float64))
        >>> round(found.value, 9)
        12.0
    """
    return slopes(function, step).weigh(weights)


def compare(
    estimate: Estimate, value: float, magnitude: float, dtype: torch.dtype, grain: float = 0.0
) -> Match:
    """Whether a derivative agrees with its estimate.

    Arguments:
        estimate: by finite differences.
        value: the derivative to be judged.
        magnitude: the scale of a cancellation among its terms.
        dtype: the precision the function computes in.
        grain: the precision of the derivative, where that is less.

    Returns:
        ``"match"``, ``"mismatch"``, or ``"unclear"`` at a kink or where the estimate is too rough.

    Example:
        >>> compare(Estimate(1.0, 1e-12, 1.0, True), 1.5, 1.5, torch.float64)
        'mismatch'
    """
    # An infinite derivative is no scale: it would agree with everything.
    scale = max(estimate.magnitude, magnitude if math.isfinite(magnitude) else 0.0)
    if not math.isfinite(estimate.error):
        return "unclear"
    if estimate.error > max(1e-2 * scale, estimate.noise):
        return "unclear"
    tolerance = max(_RELATIVE.get(dtype, 0.1), 16 * grain) * scale + 10 * estimate.error
    if abs(value - estimate.value) <= tolerance:
        return "match"
    if not estimate.smooth or estimate.error > 1e-2 * scale:
        return "unclear"
    return "mismatch"


def _total(terms: torch.Tensor) -> float:
    return float(terms.sum())


def _root(terms: torch.Tensor) -> float:
    return float(terms.square().sum().sqrt())


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
