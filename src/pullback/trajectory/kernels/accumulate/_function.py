"""The chain of sums as a `pullback.tensor.Function`, and its adjoint as another.

Both are linear in what flows through them; the gradient of the coefficients, and with them that
of dt, is plain torch. Derivatives of every order are made of these three.
"""

from typing import Any

from torch import Tensor

from pullback.internal.kernels._backend import is_recorded
from pullback.tensor import Function
from pullback.trajectory.kernels.accumulate._dispatch import accumulate, accumulate_adjoint
from pullback.trajectory.kernels.accumulate._reference import steps_adjoint

__all__ = ["Accumulate", "AccumulateAdjoint"]


class Accumulate(Function):
    """Control, initial states and coefficients to position, velocity, acceleration and jerk."""

    autocast = "disable"
    _direct = True

    @staticmethod
    def forward(
        control: Tensor, initial: Tensor, steps: Tensor, order: int, backend: str
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Apply `pullback.trajectory.kernels.accumulate._dispatch.accumulate`."""
        return accumulate(control, initial, steps, order, backend)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the adjoint needs."""
        control, initial, steps, ctx.order, ctx.backend = inputs
        ctx.save_for_backward(control, initial, steps)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        """Apply the adjoint; the coefficients' gradient only where it is needed."""
        control, initial, steps = ctx.saved_tensors
        needs = ctx.needs_input_grad
        back: tuple[Any, Any] = (None, None)
        if needs[0] or needs[1]:
            run = AccumulateAdjoint.apply if is_recorded() else AccumulateAdjoint.forward
            back = run(*cotangents, steps, ctx.order, ctx.backend)  # type: ignore[arg-type] # as many as forward takes
        steep = steps_adjoint(cotangents, control, initial, steps, ctx.order) if needs[2] else None
        return *back, steep, None, None


class AccumulateAdjoint(Function):
    """Cotangents and coefficients to the gradients of control and initial states."""

    autocast = "disable"
    _direct = True

    @staticmethod
    def forward(
        position: Tensor,
        velocity: Tensor,
        acceleration: Tensor,
        jerk: Tensor,
        steps: Tensor,
        order: int,
        backend: str,
    ) -> tuple[Tensor, Tensor]:
        """Apply `pullback.trajectory.kernels.accumulate._dispatch.accumulate_adjoint`."""
        return accumulate_adjoint(position, velocity, acceleration, jerk, steps, order, backend)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the chain of sums needs."""
        *cotangents, steps, ctx.order, ctx.backend = inputs
        ctx.save_for_backward(*cotangents, steps)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        """Apply the chain of sums: the adjoint of the adjoint."""
        control, initial = cotangents
        *saved, steps = ctx.saved_tensors
        needs = ctx.needs_input_grad
        back: tuple[Any, ...] = (None,) * 4
        if any(needs[:4]):
            back = Accumulate.apply(control, initial, steps, ctx.order, ctx.backend)
        steep = (
            steps_adjoint(tuple(saved), control, initial, steps, ctx.order) if needs[4] else None
        )
        return *back, steep, None, None
