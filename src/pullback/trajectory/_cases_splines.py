"""The check cases of splines and least motions, one part of those of this room."""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from pullback.tensor import Case
from pullback.trajectory._limits import Limits
from pullback.trajectory._state import State, rest
from pullback.trajectory.curves._bspline import bspline
from pullback.trajectory.curves._quintic import quintic
from pullback.trajectory.kernels.banded import BandedSolve, TriangularSolve
from pullback.trajectory.plans._minimum_jerk import minimum_acceleration, minimum_jerk
from pullback.trajectory.plans._minimum_time import minimum_time

__all__ = ["spline_cases"]

# The clause also feeds expanded inputs, whose values are all alike.
_TIMES_REFUSED = {"layout": "times that are all alike do not increase"}
_STILL_REFUSED = {"layout": "points that are all alike have no least duration"}
_TIMES = (0.0, 0.7, 1.5, 2.0)


def spline_cases() -> Iterator[Case]:
    """Yield a case for each Function and each curve of this half of the room."""
    yield Case("trajectory.banded_solve", BandedSolve, _system)
    yield Case("trajectory.triangular_solve", TriangularSolve, _triangle)
    yield Case("trajectory.bspline", _bspline, _points)
    yield Case("trajectory.quintic", _quintic, _points_and_times, refuses=_TIMES_REFUSED)
    yield Case("trajectory.minimum_jerk", _minimum_jerk, _points_and_times, refuses=_TIMES_REFUSED)
    yield Case(
        "trajectory.minimum_jerk.limits", _within_limits, _points_and_times, refuses=_TIMES_REFUSED
    )
    yield Case(
        "trajectory.minimum_acceleration",
        _minimum_acceleration,
        _points_and_times,
        refuses=_TIMES_REFUSED,
    )
    yield Case("trajectory.minimum_time", _minimum_time, _points, refuses=_STILL_REFUSED)


def _normal(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _system(generator: Generator) -> tuple[Tensor, Tensor, bool]:
    band, right = _normal(generator, 7, 3), _normal(generator, 7, 2)
    band[:, 0] = band[:, 0].abs() + 6
    return band.requires_grad_(), right.requires_grad_(), True


def _triangle(generator: Generator) -> tuple[Tensor, Tensor, bool]:
    factor, right, _ = _system(generator)
    return right, factor.detach(), True


def _points(generator: Generator) -> tuple[Tensor]:
    return (_normal(generator, 4, 2).requires_grad_(),)


def _points_and_times(generator: Generator) -> tuple[Tensor, Tensor]:
    (points,) = _points(generator)
    return points, torch.tensor(_TIMES, dtype=torch.float64, requires_grad=True)


def _bspline(points: Tensor) -> Tensor:
    start = State(velocity=0.5, acceleration=0.0)
    curve = bspline(points, 2.0, degree=5, start=start, goal=rest)
    return curve.sample((0.1, 0.9, 1.7)).velocity


def _quintic(points: Tensor, times: Tensor) -> Tensor:
    return quintic(points, times).sample((0.1, 0.9, 1.7)).acceleration


def _minimum_jerk(points: Tensor, times: Tensor) -> Tensor:
    return minimum_jerk(points, times, samples=12).velocity


def _within_limits(points: Tensor, times: Tensor) -> Tensor:
    # On a line that the limit allows and touches, wherever the points are drawn.
    line = torch.tensor([[0.0], [1.0], [2.0], [2.5]], dtype=points.dtype, device=points.device)
    near = line + 0.1 * points.tanh()
    return minimum_jerk(near, times, limits=Limits(velocity=2.3), samples=12).velocity


def _minimum_acceleration(points: Tensor, times: Tensor) -> Tensor:
    return minimum_acceleration(points, times, samples=12).position


def _minimum_time(points: Tensor) -> Tensor:
    return minimum_time(points, Limits(velocity=2.0), samples=12).position
