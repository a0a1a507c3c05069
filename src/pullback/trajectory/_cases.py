"""What this room offers to ``pullback check``: a case for each curve and each plan."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from pullback.tensor import Case
from pullback.trajectory._limits import Limits
from pullback.trajectory._motion import Motion
from pullback.trajectory._state import PARTS, State, rest
from pullback.trajectory.curves._differentiate import differentiate
from pullback.trajectory.curves._integrate import Order, integrate
from pullback.trajectory.curves._quintic import quintic
from pullback.trajectory.curves._spline import bspline
from pullback.trajectory.kernels.stencil._weights import Scheme
from pullback.trajectory.plans._minimum_jerk import minimum_acceleration, minimum_jerk
from pullback.trajectory.plans._minimum_time import minimum_time
from pullback.trajectory.plans._preconditioner import Preconditioner

__all__ = ["cases"]

# The clause also feeds expanded inputs, whose values are all alike.
_TIMES_REFUSED = {"layout": "times that are all alike do not increase"}
_STILL_REFUSED = {"layout": "points that are all alike have no least duration"}
_TIMES = (0.0, 0.7, 1.5, 2.0)
_AT = (0.1, 0.9, 1.7)
_ENDS: Any = {"degree": 5, "start": State(velocity=0.5, acceleration=0.0), "goal": rest}


def cases() -> Iterable[Case]:
    """Return the cases of differentiation, integration, splines and least motions."""
    return [
        Case("trajectory.differentiate", _differentiator("central"), _samples()),
        Case("trajectory.differentiate_backward", _differentiator("backward"), _samples()),
        Case("trajectory.differentiate_steps", _differentiator("central"), _samples(5)),
        Case("trajectory.integrate_velocity", _integrator("velocity"), _samples()),
        Case("trajectory.integrate_acceleration", _integrator("acceleration"), _samples(6)),
        Case("trajectory.integrate_jerk", _integrator("jerk"), _samples()),
        Case("trajectory.preconditioner", _preconditioner, _points),
        Case(
            "trajectory.bspline", lambda p: bspline(p, 2.0, **_ENDS).sample(_AT).velocity, _points
        ),
        *(
            Case(f"trajectory.{name}", run, _timed, refuses=_TIMES_REFUSED)
            for name, run in {
                "quintic": lambda p, times: quintic(p, times).sample(_AT).acceleration,
                "minimum_jerk": lambda p, times: minimum_jerk(p, times, samples=12).velocity,
                "minimum_jerk.limits": _within_limits,
                "minimum_acceleration": lambda p, times: (
                    minimum_acceleration(p, times, samples=12).position
                ),
            }.items()
        ),
        Case(
            "trajectory.minimum_time",
            lambda p: minimum_time(p, Limits(velocity=2.0), samples=12).position,
            _points,
            refuses=_STILL_REFUSED,
        ),
    ]


def _samples(*dt_shape: int) -> Callable[[Generator], tuple[Any, ...]]:
    def make(generator: Generator) -> tuple[Any, ...]:
        draw = partial(torch.randn, generator=generator, dtype=torch.float64)
        dt = 0.5 + torch.rand(dt_shape, generator=generator, dtype=torch.float64)
        return draw(2, 6, 3).requires_grad_(), draw(2, 3).requires_grad_(), dt.requires_grad_()

    return make


def _points(generator: Generator) -> tuple[Tensor]:
    return (torch.randn(4, 2, generator=generator, dtype=torch.float64).requires_grad_(),)


def _timed(generator: Generator) -> tuple[Tensor, Tensor]:
    return *_points(generator), torch.tensor(_TIMES, dtype=torch.float64, requires_grad=True)


def _parts(motion: Motion) -> tuple[Tensor, ...]:
    return motion.position, motion.velocity, motion.acceleration, motion.jerk


def _differentiator(scheme: Scheme) -> Callable[..., tuple[Tensor, ...]]:
    def run(position: Tensor, velocity: Tensor, dt: Tensor) -> tuple[Tensor, ...]:
        start = State(velocity=velocity)
        return _parts(differentiate(position, dt, start=start, goal=rest, scheme=scheme))

    return run


def _integrator(order: Order) -> Callable[..., tuple[Tensor, ...]]:
    def run(control: Tensor, start: Tensor, dt: Tensor) -> tuple[Tensor, ...]:
        state = State(*(start * (part + 1) for part in range(PARTS.index(order))))
        return _parts(integrate(control, dt, start=state, order=order))

    return run


def _preconditioner(points: Tensor) -> tuple[Tensor, Tensor]:
    metric = Preconditioner(4, 0.5, device=points.device)
    return metric.positions(points), metric.invert(points)


def _within_limits(points: Tensor, times: Tensor) -> Tensor:
    # On a line that the limit allows and touches, wherever the points are drawn.
    line = torch.tensor([[0.0], [1.0], [2.0], [2.5]], dtype=points.dtype, device=points.device)
    near = line + 0.1 * points.tanh()
    return minimum_jerk(near, times, limits=Limits(velocity=2.3), samples=12).velocity
