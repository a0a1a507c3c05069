"""What flows to position, velocity, acceleration and jerk, as a `pullback.tensor.Function`.

A family of kernels is linear in two inputs, such as positions and boundary values, and linear in
its weights. So is its adjoint, and each is the other's backward: derivatives of every order are
made of these two and of the gradient of the weights, which is plain torch.
"""

from typing import Any

from torch import Tensor

from pullback.internal.kernels._backend import is_recorded
from pullback.tensor import Function
from pullback.trajectory.kernels._dispatch import REFERENCES, levels, levels_adjoint, read_code

__all__ = ["Levels"]


class Levels(Function):
    """Weights and two inputs to position, velocity, acceleration and jerk, or cotangents back.

    Inputs are the weights, the family, its code, a backend, whether it is the adjoint, and the two
    inputs or, for the adjoint, cotangents of the four.
    """

    autocast = "disable"
    _direct = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        """Apply the kernel of a family."""
        weights, family, code, backend, adjoint, *given = inputs
        run: Any = levels_adjoint if adjoint else levels
        return run(*given, weights, family, code, backend)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the other one needs, and what the gradient of the weights does."""
        ctx.chosen = inputs[1:5]
        ctx.save_for_backward(inputs[0], *(inputs[5:] if ctx.needs_input_grad[0] else ()))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        """Apply the other one; the weights' gradient only where it is needed."""
        weights, *given = ctx.saved_tensors
        family, code, backend, adjoint = ctx.chosen
        back: tuple[Any, ...] = (None,) * (4 if adjoint else 2)
        if any(ctx.needs_input_grad[5:]):
            run = Levels.apply if is_recorded() else Levels.forward
            back = run(weights, family, code, backend, not adjoint, *cotangents)
        steep = None
        if ctx.needs_input_grad[0]:
            four, two = (given, cotangents) if adjoint else (cotangents, given)
            steep = REFERENCES[family].weights_adjoint(four, *two, weights, read_code(code))
        return steep, None, None, None, None, *back
