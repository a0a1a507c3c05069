r"""At a kink of the reference any gradient between those of its sides is right.

At a tie of a maximum, or the zero of an absolute value, there is no one gradient: each limit of
gradients nearby is one, and so is what lies between (Clarke, *Optimization and Nonsmooth Analysis*,
1983, chapter 2). Two kinds of neighbours show the sides of an entry: the difference quotients of
each output to both sides of it, since each may choose by itself; and the gradients where it lies
above or below so many of those that it is tied with, as the second largest number does. Where the
reference is smooth along the direction in which all entries grow, the gradients have to add up to
its derivative: a maximum that gives the whole cotangent to each of its ties gives too much.
"""

import itertools
from collections.abc import Callable, Sequence

import torch

from pullback.conformance import Arguments
from pullback.verification._answers import Answer, Runner

__all__ = ["are_of_sides"]

_STEP, _SLACK = 1e-5, 0.01
_RANKS = 5  # how many of those that an entry is tied with are moved beyond it


def are_of_sides(
    judge: Runner, arguments: Arguments, number: int, got: Answer, wrong: Sequence[int]
) -> bool:
    """Whether the reference has a kink at some entries, and a gradient lies between its sides.

    The sides of half the step are half as far apart where there is a second derivative, and as far
    as before at a kink.
    """
    if not 0 <= number < len(arguments.differentiable):  # an output, or of a parameter
        return False
    wide = arguments.cast(torch.float64)
    found = got.gradients[number].flatten()
    quotients = _quotients(judge, wide, number)
    for entry in wrong:
        value = float(found[entry].real)
        if not any(
            _is_between(value, sides(entry, _STEP), sides(entry, _STEP / 2))
            for sides in (quotients, _neighbours(judge, wide, number))
        ):
            return False
    return _add_up(judge, wide, got)


def _is_between(value: float, far: tuple[float, float], near: tuple[float, float]) -> bool:
    gap, slack = near[1] - near[0], _SLACK * (abs(near[0]) + abs(near[1]))
    is_kink = gap > max(0.75 * (far[1] - far[0]), slack)
    return is_kink and near[0] - slack <= value <= near[1] + slack


Sides = Callable[[int, float], tuple[float, float]]


def _weighed(
    judge: Runner, arguments: Arguments, points: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Each floating output at points, times its cotangent."""
    made = judge.silent().refer(arguments.with_points(points), torch.float64).outputs
    return [judge.weights(r, k) * r for k, r in enumerate(made) if r.is_floating_point()]


def _with(arguments: Arguments, number: int, point: torch.Tensor) -> list[torch.Tensor]:
    return [point if k == number else other for k, other in enumerate(arguments.points())]


def _quotients(judge: Runner, arguments: Arguments, number: int) -> Sides:
    given, point = _weighed(judge, arguments, arguments.points()), arguments.points()[number]

    def beside(entry: int, step: float) -> list[torch.Tensor]:
        moved = point.clone()
        moved.view(-1)[entry] += step
        return _weighed(judge, arguments, _with(arguments, number, moved))

    def sides(entry: int, step: float) -> tuple[float, float]:
        """What each output may add, from either of its sides: the least and the most."""
        low = high = 0.0
        for less, here, more in zip(beside(entry, -step), given, beside(entry, step), strict=True):
            left, right = (here - less) / step, (more - here) / step
            low += float(torch.minimum(left, right).sum())
            high += float(torch.maximum(left, right).sum())
        return low, high

    return sides


def _neighbours(judge: Runner, arguments: Arguments, number: int) -> Sides:
    point = arguments.points()[number]

    def gradient(entry: int, dim: int, step: float, count: int) -> float:
        """That of an entry moved by a step, beyond which some lie that it was tied with."""
        moved, place = point.clone(), list(torch.unravel_index(torch.tensor(entry), point.shape))
        line = moved[(*place[:dim], slice(None), *place[dim + 1 :])]
        ties = (line == line[place[dim]]).nonzero().flatten()
        line[ties[ties != place[dim]][:count]] += 2 * step
        line[place[dim]] += step
        made = judge.refer(arguments.with_points(_with(arguments, number, moved)), torch.float64)
        return float(made.gradients[number].flatten()[entry].real) if made.gradients else 0.0

    def sides(entry: int, step: float) -> tuple[float, float]:
        """The gradients of an entry beside those that it is tied with: the least and the most."""
        places = itertools.product(range(point.ndim), (-step, step), range(_RANKS))
        values = [gradient(entry, *place) for place in places]
        return min(values, default=0.0), max(values, default=0.0)

    return sides


def _add_up(judge: Runner, arguments: Arguments, got: Answer) -> bool:
    """Whether the gradients add up to the derivative along all entries, where there is one."""
    every = [
        sum(
            float(out.sum())
            for out in _weighed(judge, arguments, [point + step for point in arguments.points()])
        )
        for step in (-_STEP, 0.0, _STEP)
    ]
    left, right = (every[1] - every[0]) / _STEP, (every[2] - every[1]) / _STEP
    gradients = got.gradients[: len(arguments.differentiable)]
    total = sum(float(gradient.double().sum()) for gradient in gradients)
    slack = _SLACK * sum(float(gradient.double().abs().sum()) for gradient in gradients)
    return not (abs(left - right) <= slack < abs(total - (left + right) / 2))
