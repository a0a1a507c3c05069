"""What this room offers to ``pullback check``."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from pullback.tensor import Case
from pullback.trajectory._cases_splines import spline_cases
from pullback.trajectory._motion import Motion
from pullback.trajectory._state import State, rest
from pullback.trajectory.curves._differentiate import differentiate
from pullback.trajectory.curves._integrate import Order, integrate
from pullback.trajectory.kernels.stencil import Scheme

__all__ = ["cases"]

Parts = tuple[Tensor, Tensor, Tensor, Tensor]


def _parts(motion: Motion) -> Parts:
    return motion.position, motion.velocity, motion.acceleration, motion.jerk


def _differentiator(scheme: Scheme) -> Callable[..., Parts]:
    def run(position: Tensor, velocity: Tensor, dt: Tensor) -> Parts:
        start = State(velocity=velocity)
        return _parts(differentiate(position, dt, start=start, goal=rest, scheme=scheme))

    return run


def _integrator(order: Order, states: int) -> Callable[..., Parts]:
    def run(control: Tensor, start: Tensor, dt: Tensor) -> Parts:
        state = State(*(start * (part + 1) for part in range(states)))
        return _parts(integrate(control, dt, start=state, order=order))

    return run


def _inputs(*dt_shape: int) -> Callable[[torch.Generator], tuple[Any, ...]]:
    def make(generator: torch.Generator) -> tuple[Any, ...]:
        options: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
        samples = torch.randn(2, 6, 3, **options).requires_grad_()
        start = torch.randn(2, 3, **options).requires_grad_()
        dt = (0.5 + torch.rand(dt_shape, **options)).requires_grad_()
        return samples, start, dt

    return make


def cases() -> Iterable[Case]:
    """Return the cases of differentiation, integration, splines and least motions."""
    return [
        Case("trajectory.differentiate", _differentiator("central"), _inputs()),
        Case("trajectory.differentiate_backward", _differentiator("backward"), _inputs()),
        Case("trajectory.differentiate_steps", _differentiator("central"), _inputs(5)),
        Case("trajectory.integrate_velocity", _integrator("velocity", 1), _inputs()),
        Case("trajectory.integrate_acceleration", _integrator("acceleration", 2), _inputs(6)),
        Case("trajectory.integrate_jerk", _integrator("jerk", 3), _inputs()),
        *spline_cases(),
    ]
