"""What flows to position, velocity, acceleration and jerk, as a `pullback.tensor.Function`.

A family of kernels is linear in two inputs, such as positions and boundary values, and linear in
its weights. So is its adjoint, which is a Function too, and each is the other's backward:
derivatives of every order are made of these two and of the gradient of the weights, which is plain
torch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from pullback.internal.kernels._backend import is_recorded
from pullback.tensor import Function

__all__ = ["Family", "Levels", "register_family"]


class Family(NamedTuple):
    """The kernels of one name.

    Arguments:
        forward: of two inputs, weights, a code of the family's own and a backend.
        adjoint: of four cotangents and the same but the inputs.
        weigh: four cotangents, the inputs, the weights and the code to the gradient of the weights.
    """

    forward: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    adjoint: Callable[..., tuple[Tensor, Tensor]]
    weigh: Callable[..., Tensor]


_families: dict[str, Family] = {}


def register_family(name: str, family: Family) -> str:
    """Let `Levels` find kernels by a name, which is returned: graphs take names as they are."""
    _families[name] = family
    return name


class Levels(Function):
    """Two inputs and weights to position, velocity, acceleration and jerk."""

    autocast = "disable"
    _direct = True

    @staticmethod
    def forward(
        first: Tensor, second: Tensor, weights: Tensor, family: str, code: Any, backend: str
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Apply the kernel of a family."""
        return _families[family].forward(first, second, weights, code, backend)

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
            steep = _families[family].weigh(cotangents, first, second, weights, code)
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
        code: Any,
        backend: str,
    ) -> tuple[Tensor, Tensor]:
        """Apply the adjoint kernel of a family."""
        kernel = _families[family].adjoint
        return kernel(position, velocity, acceleration, jerk, weights, code, backend)

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
            steep = _families[family].weigh(tuple(saved), first, second, weights, code)
        return *back, steep, None, None, None
