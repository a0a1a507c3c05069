"""What flows to position, velocity, acceleration and jerk, as a `pullback.tensor.Function`.

A family of kernels is linear in two inputs, such as positions and boundary values, and linear in
its weights. So is its adjoint, which is a Function too, and each is the other's backward:
derivatives of every order are made of these two and of the gradient of the weights, which is plain
torch.
"""

from typing import Any

from torch import Tensor

from pullback.internal.kernels._backend import is_recorded
from pullback.tensor import Function
from pullback.trajectory.kernels._dispatch import REFERENCES, levels, levels_adjoint, read_code

__all__ = ["Levels"]


class Levels(Function):
    """Two inputs and weights to position, velocity, acceleration and jerk."""

    autocast = "disable"
    _direct = True

    @staticmethod
    def forward(
        first: Tensor, second: Tensor, weights: Tensor, family: str, code: str, backend: str
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Apply the kernel of a family."""
        return levels(first, second, weights, family, code, backend)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the adjoint needs."""
        ctx.chosen = inputs[3:]
        ctx.save_for_backward(*inputs[:3])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        """Apply the adjoint; the weights' gradient only where it is needed."""
        first, second, weights = ctx.saved_tensors
        needs, (family, code, _) = ctx.needs_input_grad, ctx.chosen
        back: tuple[Any, Any] = (None, None)
        if needs[0] or needs[1]:
            run = LevelsAdjoint.apply if is_recorded() else LevelsAdjoint.forward
            back = run(*cotangents, weights, *ctx.chosen)  # type: ignore[arg-type] # as many as forward takes
        steep = None
        if needs[2]:
            steep = REFERENCES[family].weights_adjoint(
                cotangents, first, second, weights, read_code(code)
            )
        return *back, steep, None, None, None


class LevelsAdjoint(Function):
    """Cotangents and weights to the gradients of the two inputs."""

    autocast = "disable"
    _direct = True

    @staticmethod
    def forward(
        position: Tensor,
        velocity: Tensor,
        acceleration: Tensor,
        jerk: Tensor,
        weights: Tensor,
        family: str,
        code: str,
        backend: str,
    ) -> tuple[Tensor, Tensor]:
        """Apply the adjoint kernel of a family."""
        cotangents = (position, velocity, acceleration, jerk)
        return levels_adjoint(*cotangents, weights, family, code, backend)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the forward kernel needs."""
        ctx.chosen = inputs[5:]
        ctx.save_for_backward(*inputs[:5])

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Any, ...]:
        """Apply the forward kernel: the adjoint of the adjoint."""
        *saved, weights = ctx.saved_tensors
        needs, (family, code, _) = ctx.needs_input_grad, ctx.chosen
        back: tuple[Any, ...] = (None,) * 4
        if any(needs[:4]):
            back = Levels.apply(first, second, weights, *ctx.chosen)
        steep = None
        if needs[4]:
            steep = REFERENCES[family].weights_adjoint(
                tuple(saved), first, second, weights, read_code(code)
            )
        return *back, steep, None, None, None
