"""The stencil as a `pullback.tensor.Function`, and its adjoint as another.

The stencil is linear in positions and boundary values, and linear in the weights. So is its
adjoint, and each is the other's backward: derivatives of every order are made of these two and of
the gradient of the weights, which is plain torch.
"""

from typing import Any

from torch import Tensor

from pullback.internal.kernels._backend import is_recorded
from pullback.tensor import Function
from pullback.trajectory.kernels.stencil._dispatch import stencil, stencil_adjoint
from pullback.trajectory.kernels.stencil._layout import read_geometry
from pullback.trajectory.kernels.stencil._reference import weights_adjoint

__all__ = ["Stencil", "StencilAdjoint"]


class Stencil(Function):
    """Positions, boundary values and weights to position, velocity, acceleration and jerk."""

    autocast = "disable"
    _direct = True

    @staticmethod
    def forward(
        x: Tensor, conditions: Tensor, weights: Tensor, layout: str, backend: str
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Apply `pullback.trajectory.kernels.stencil._dispatch.stencil`."""
        return stencil(x, conditions, weights, layout, backend)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the adjoint needs."""
        x, conditions, weights, ctx.layout, ctx.backend = inputs
        ctx.save_for_backward(x, conditions, weights)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        """Apply the adjoint; the weights' gradient only where it is needed."""
        x, conditions, weights = ctx.saved_tensors
        needs = ctx.needs_input_grad
        back: tuple[Any, Any] = (None, None)
        if needs[0] or needs[1]:
            run = StencilAdjoint.apply if is_recorded() else StencilAdjoint.forward
            back = run(*cotangents, weights, ctx.layout, ctx.backend)  # type: ignore[arg-type] # as many as forward takes
        steep = None
        if needs[2]:
            steep = weights_adjoint(
                cotangents[1:], x, conditions, weights, read_geometry(ctx.layout)
            )
        return *back, steep, None, None


class StencilAdjoint(Function):
    """Cotangents and weights to the gradients of positions and boundary values."""

    autocast = "disable"
    _direct = True

    @staticmethod
    def forward(
        position: Tensor,
        velocity: Tensor,
        acceleration: Tensor,
        jerk: Tensor,
        weights: Tensor,
        layout: str,
        backend: str,
    ) -> tuple[Tensor, Tensor]:
        """Apply `pullback.trajectory.kernels.stencil._dispatch.stencil_adjoint`."""
        return stencil_adjoint(position, velocity, acceleration, jerk, weights, layout, backend)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the stencil needs."""
        *cotangents, weights, ctx.layout, ctx.backend = inputs
        ctx.save_for_backward(*cotangents[1:], weights)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        """Apply the stencil: the adjoint of the adjoint."""
        x, conditions = cotangents
        *saved, weights = ctx.saved_tensors
        needs = ctx.needs_input_grad
        back: tuple[Any, ...] = (None,) * 4
        if any(needs[:4]):
            back = Stencil.apply(x, conditions, weights, ctx.layout, ctx.backend)
        steep = None
        if needs[4]:
            steep = weights_adjoint(tuple(saved), x, conditions, weights, read_geometry(ctx.layout))
        return *back, steep, None, None
