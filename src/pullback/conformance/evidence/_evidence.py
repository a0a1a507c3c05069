"""The evidence for and against a derivative: finite differences with an error estimate.

Every entry of the function is judged by itself. Its central difference is taken at eight steps,
each a quarter of the one before (at three of them where these lie on a line), and extrapolated to a
step of zero (Ridders, "Accurate computation of F'(x) and F'(x)F''(x)", Advances in Engineering
Software 4, 1982). The entry of the tableau that its neighbours agree with best is the estimate, and
the disagreement its error. One-sided differences tell a kink from a smooth point, and the finest
differences a jump: an estimate that they contradict agreed with its neighbours by chance. An entry
at an edge is not settled and is left out of what is compared, so that the settled ones are not lost
with it.

**Which step.** A central difference at h is off by h^2 f'''/6, and by at most 2 eps |f| / h, since
each of two values is rounded in every operation, by some 2 eps |f| in all. Their sum is least at
h = (6 eps |f / f'''|)^(1/3): 1e-5 in float64 and 1e-2 in float32, of the scale on which f bends,
which nobody knows. So the steps run from 2^-6 to 2^-20 of the size of the input; order m of the
tableau takes the terms up to h^(2m) away, and the smallest disagreement picks the best of them.

**Which noise.** e_i = (disagreement with both neighbours) + 2 eps |f_i| / h bounds the error of
entry i. Compared is a sum over entries, S = sum w_i d_i with weights w_i = +-(0.5 to 1.5) whose
signs are drawn apart from the errors. By Hoeffding's inequality its error exceeds
k (sum (w_i e_i)^2)^(1/2) with a probability of at most 2 exp(-k^2 / 2): for k = 6, 3e-8. Where
the direction was chosen by the gradient (`coherent`) the signs may go with what is left of h^(2m),
which then adds up in full; with rounding they do not. In simulation the error is less than 0.4 of
that in 99 of 100 comparisons. An error in one entry of many thousand stands out beside a root of
squares, as it cannot beside a sum of magnitudes.

**Which threshold.** 6 errors, by the above, and above these a relative part for what forward or
backward computes to a tolerance (of 1e-7 or so, by solvers): 3e-5 in float64, a thirtieth of the
smallest error that is to be found (1e-3), and 5e-3 in float32, a sixth of 3 %. Along a random
direction a gradient that is wrong by the factor 1 + d differs by d |S|, where S is close to normal
with the deviation to which the threshold is relative: it is missed where |S| is small, with a
probability of 0.8 threshold / d (2 % in float64, 13 % in float32). Along a coherent one it differs
by d of the scale itself and is not. Every second comparison is coherent, and none that misses
acquits alone (`decide`).

**What is left.** Not noise but a wrong error estimate: a function with a feature between two steps.
So nobody is accused by one comparison. Another first step, 0.7 of the usual one, has no step in
common with it; both must disagree with backward, at two points or along two directions. In
simulation one comparison with one first step is never wrong in thousands (tests/conformance/
test_error_rates.py), that is in less than one of a thousand; two that are independent, in less than
one of a million.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from pullback.conformance.evidence._extrapolation import extrapolate
from pullback.errors import ArgumentError

__all__ = [
    "FARTHER_STEP",
    "FIRST_STEP",
    "OTHER_STEP",
    "Estimate",
    "Match",
    "Slopes",
    "agreement",
    "compare",
    "slopes",
    "steps_from",
]

FIRST_STEP = 2.0**-6
"""The largest step, as a part of the size of what moves."""

OTHER_STEP = 0.7 * FIRST_STEP
"""The largest step of the second witness."""

FARTHER_STEP = 2.0**-3
"""A largest step for float32 where nothing settles: rounding is an eighth of the usual there."""

_STEPS = 8
_RATIO = 4.0
_FINE = 3  # of the finest steps that must agree with the estimate
# How many times its estimated error an estimate may be off, and the relative part beside it.
_ERRORS = 6
_RELATIVE = {2.0**-52: 3e-5, 2.0**-23: 5e-3}  # by the precision of float64 and of float32
_ROUGHEST = 0.1  # in less than float32


def agreement(eps: float = 2.0**-52, grain: float = 0.0) -> float:
    """The relative agreement that is asked of a right derivative.

    Arguments:
        eps: the precision that the function computes in.
        grain: the precision of the derivative, where that is less.
    """
    return max(_RELATIVE.get(eps, _ROUGHEST), 16 * grain)


@dataclass(frozen=True)
class Estimate:
    """A directional derivative by finite differences."""

    value: float  # the estimate of d/dt sum(weights * function(t)) at t = 0
    error: float  # its estimated absolute error
    magnitude: float  # the scale of a cancellation among its terms
    smooth: bool  # whether the entries it is made of are settled
    noise: float = 0.0  # an error that rounding alone explains, whatever the derivative


@dataclass(frozen=True)
class Slopes:
    """The derivative of each entry of a real vector by finite differences."""

    value: torch.Tensor  # the estimates, shape ``(n,)``, float64
    error: torch.Tensor  # their estimated absolute errors; infinite where nothing is finite
    settled: torch.Tensor  # where the estimate can be relied upon: no kink, no jump, little noise
    noise: torch.Tensor  # the errors that rounding alone explains, whatever the step
    rounding: torch.Tensor  # how much of the error is rounding, at the step that was chosen

    def weigh(self, weights: torch.Tensor, *, coherent: bool = False) -> Estimate:
        """The derivative of ``sum(weights * function)``, with weights that are random.

        Arguments:
            weights: real vector, shape ``(n,)``; entries that are not settled need a zero.
            coherent: the direction was chosen so that the terms add up; errors then may add up too,
                those of rounding aside, where they otherwise walk at random.
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
        # As far as an estimate disagrees with its neighbours by no more than rounding, that is why.
        random = torch.minimum(error, 2 * self.rounding[used]) if coherent else error
        return Estimate(
            _total(w * value), _root(w * random) + _total((w * (error - random)).abs()),
            _root(w * value), True, _root(w * noise),
        )  # fmt: skip


Match = str  # "match", "mismatch" or "unclear"


def slopes(
    function: Callable[[float], torch.Tensor], step: float = FIRST_STEP, grain: float = 0.0
) -> Slopes:
    """The derivative of every entry of ``function(t)`` at ``t = 0``.

    Arguments:
        function: maps a real number to a real vector, shape ``(n,)``.
        step: the largest step.
        grain: the precision of its values, where that is less than their dtype's.

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
    steps = steps_from(step)
    ends = {h: _both(function, h, base) for h in (*steps[:2], steps[-1])}
    if (straight := _straight(base, ends, eps)) is not None:
        return straight
    pairs = [ends[h] if h in ends else _both(function, h, base) for h in steps]
    size = _sizes([base, *(side for pair in pairs for side in pair)], eps)
    centrals = [(up - down) / (2 * h) for h, (up, down) in zip(steps, pairs, strict=True)]
    bends = [(up + down - 2 * base).abs() for up, down in pairs]
    noise = _noise(bends, size, eps)
    value, error, rounding = extrapolate(centrals, noise, steps, eps)
    gaps = [bend / h for h, bend in zip(steps, bends, strict=True)]
    settled = _settled(value, error, centrals, gaps, noise, step)
    # What stands still to the last bit moves by less than the rounding of some intermediate, as the
    # logarithm of 1 + x^2 does near zero: by up to eps within the largest step that shows nothing.
    moves = torch.stack([c.abs() + bend for c, bend in zip(centrals, bends, strict=True)])
    still = (moves == 0).flip(0).cumprod(0).sum(0)  # at so many of the finest steps
    reach = step / _RATIO ** (_STEPS - still)
    unseen = torch.where((still >= _FINE) & (value == 0), 2 * eps / reach, 0.0)
    return Slopes(value, error + unseen, settled, eps**0.5 * size + unseen, rounding + unseen)


def _both(
    function: Callable[[float], torch.Tensor], h: float, base: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    sides = function(h).double(), function(-h).double()
    if any(side.shape != base.shape for side in sides):
        raise ArgumentError("The function gives another number of values beside the point.")
    return sides


# Times the rounding of the largest value that one of an affine function may be off its line, and
# that a sum of terms of that size may be off zero.
_STRAIGHT, _STRAY = 16, 4


def _straight(
    base: torch.Tensor, ends: Mapping[float, tuple[torch.Tensor, torch.Tensor]], eps: float
) -> Slopes | None:
    """The slopes of what is affine from the largest step to the finest: steps between say no more.

    So is backward in its cotangent, and a forward that multiplies, gathers or convolves with others
    in one of its inputs. ``None`` where a value is off the line by more than rounding.
    """
    (step, (up, down)), *finer = ends.items()
    value = (up - down) / (2 * step)
    size = _sizes([base, *(side for pair in ends.values() for side in pair)], eps)
    line = [(up + down - 2 * base).abs() for up, down in ends.values()]
    line += [((up - down) / 2 - h * value).abs() for h, (up, down) in finer]
    off = torch.stack(line).amax(0)
    if size.numel() and not bool(off.max() <= _STRAIGHT * eps * size.max()):
        return None
    unseen = torch.where((value == 0) & (off == 0), 2 * eps / step, 0.0)
    rounding = 2 * eps * size / step + unseen
    error = off / step + rounding
    settled = error <= 1e-3 * value.square().mean().sqrt()
    found = Slopes(value, error, settled, eps**0.5 * size + unseen, rounding)
    return found if bool(settled.all()) else None  # it stands still, as far as rounding shows


def _sizes(values: list[torch.Tensor], eps: float) -> torch.Tensor:
    """How large each entry is, or the terms that it is the sum of.

    What is no larger than the rounding of the largest entry is what terms of that size have left.
    """
    size = torch.stack([value.abs().nan_to_num() for value in values]).amax(0)
    most = size.amax() if size.numel() else size.new_zeros(())
    return torch.where((size > 0) & (size <= _STRAY * eps * most), most, size)


def steps_from(step: float) -> list[float]:
    """Eight steps, each a quarter of the one before."""
    return [step / _RATIO**level for level in range(_STEPS)]


def _noise(bends: list[torch.Tensor], size: torch.Tensor, eps: float) -> torch.Tensor:
    """The noise of each entry: of rounding, or, where most entries have more, what they have.

    An iterative forward repeats itself to its own tolerance only, and one that subtracts rounds
    what it subtracts. That is seen in second differences that stay as large as the step shrinks, as
    those of a kink or a slope do not.
    """
    known = (size > 0) & bends[-1].isfinite()
    if not known.any():
        return eps * size
    before, last = (float((bend[known] / size[known]).median()) for bend in (bends[-3], bends[-1]))
    return max(eps, last if last > 0.3 * before else 0.0) * size


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


def compare(
    estimate: Estimate, value: float, magnitude: float, eps: float = 2.0**-52, grain: float = 0.0
) -> Match:
    """Whether a derivative agrees with its estimate.

    Arguments:
        estimate: by finite differences.
        value: the derivative to be judged.
        magnitude: the scale of a cancellation among its terms.
        eps: the precision the function computes in.
        grain: the precision of the derivative, where that is less.

    Returns:
        ``"match"``, ``"mismatch"``, or ``"unclear"`` at a kink or where the estimate is too rough.

    Example:
        >>> compare(Estimate(1.0, 1e-12, 1.0, True), 1.5, 1.5)
        'mismatch'
    """
    # An infinite derivative is no scale: it would agree with everything.
    scale = max(estimate.magnitude, magnitude if math.isfinite(magnitude) else 0.0)
    if not math.isfinite(estimate.error):
        return "unclear"
    if estimate.error > max(1e-2 * scale, estimate.noise):
        return "unclear"
    tolerance = agreement(eps, grain) * scale + _ERRORS * estimate.error
    if abs(value - estimate.value) <= tolerance:
        return "match"
    if not estimate.smooth or estimate.error > 1e-2 * scale:
        return "unclear"
    return "mismatch"


def _total(terms: torch.Tensor) -> float:
    return float(terms.sum())


def _root(terms: torch.Tensor) -> float:
    return float(terms.square().sum().sqrt())
