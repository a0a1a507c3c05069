"""What flows to position, velocity, acceleration and jerk: two operators, and a Function over them.

A family of kernels is linear in two inputs, such as positions and boundary values, and linear in
its weights. So is its adjoint, and each is the other's backward: derivatives of every order are
made of these two and of the gradient of the weights, which is plain torch.

A family is a package whose modules `_reference`, `_cpu` and `_triton` have ``apply`` and
``apply_adjoint``; the reference says also what its outputs are shaped like, and the gradient of the
weights. A family's own numbers go as a word: an argument without a structure that each call would
walk. The operators carry kernels and no rule of differentiation: that is `Levels`'.
"""

from typing import Any

from torch import Tensor

from pullback.internal.kernels._backend import implementation, is_recorded
from pullback.internal.kernels._folding import fold_batch
from pullback.internal.kernels._kernel import register_kernel
from pullback.tensor import Function
from pullback.trajectory.kernels.accumulate import _reference as accumulate
from pullback.trajectory.kernels.stencil import _reference as stencil

__all__ = ["Levels"]

_PACKAGE = "pullback.trajectory.kernels"
REFERENCES: dict[str, Any] = {"accumulate": accumulate, "stencil": stencil}

_codes: dict[str, tuple[int, ...]] = {}


def read_code(code: str) -> tuple[int, ...]:
    """The numbers of a word: ``"2,5"`` to ``(2, 5)``."""
    numbers = _codes.get(code)
    if numbers is None:
        numbers = _codes[code] = tuple(map(int, code.split(",")))
    return numbers


@register_kernel("pullback::levels")
def levels(
    first: Tensor, second: Tensor, weights: Tensor, family: str, code: str, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The reference's ``apply`` by a chosen backend.

    Only rows at the ends of a stencil weigh boundary values: a backend may take those weights of
    inside rows as zero without a look.
    """
    kernels = implementation(f"{_PACKAGE}.{family}", backend)
    return kernels.apply(first, second, weights, read_code(code))


@register_kernel("pullback::levels_adjoint")
def levels_adjoint(
    position: Tensor,
    velocity: Tensor,
    acceleration: Tensor,
    jerk: Tensor,
    weights: Tensor,
    family: str,
    code: str,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """The reference's ``apply_adjoint`` of four cotangents; the others as in `levels`."""
    cotangents = (position, velocity, acceleration, jerk)
    kernels = implementation(f"{_PACKAGE}.{family}", backend)
    return kernels.apply_adjoint(cotangents, weights, read_code(code))


@levels.register_fake
def _(first: Tensor, second: Tensor, weights: Tensor, family: str, code: str, _: str) -> Any:
    batch, samples, dof = first.shape
    more, _rows = REFERENCES[family].sizes(weights, read_code(code))
    return tuple(first.new_empty(batch, samples + more, dof) for _ in range(4))


@levels_adjoint.register_fake
def _(position: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    batch, samples, dof = position.shape
    *_, weights, family, code, _backend = others
    more, rows = REFERENCES[family].sizes(weights, read_code(code))
    return position.new_empty(batch, samples - more, dof), position.new_empty(batch, rows, dof)


levels.register_vmap(fold_batch(levels, 3))
levels_adjoint.register_vmap(fold_batch(levels_adjoint, 5))


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
