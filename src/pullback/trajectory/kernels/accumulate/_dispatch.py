"""The chain of sums as two `torch.library` operators over three implementations.

The operators carry kernels and no rule of differentiation: that is `Levels`'.
"""

from typing import Any

from torch import Tensor

from pullback.internal.kernels._backend import implementation
from pullback.internal.kernels._folding import fold_batch
from pullback.internal.kernels._kernel import register_kernel
from pullback.trajectory.kernels._function import Family, register_family
from pullback.trajectory.kernels.accumulate._reference import steps_adjoint

__all__ = ["ACCUMULATE", "accumulate", "accumulate_adjoint"]

_PACKAGE = "pullback.trajectory.kernels.accumulate"


@register_kernel("pullback::accumulate")
def accumulate(
    control: Tensor, initial: Tensor, steps: Tensor, order: int, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`_reference.accumulate` by a chosen backend."""
    return implementation(_PACKAGE, backend).accumulate(control, initial, steps, order)


@register_kernel("pullback::accumulate_adjoint")
def accumulate_adjoint(
    position: Tensor,
    velocity: Tensor,
    acceleration: Tensor,
    jerk: Tensor,
    steps: Tensor,
    order: int,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """`_reference.accumulate_adjoint` of four cotangents; the others as in `accumulate`."""
    cotangents = (position, velocity, acceleration, jerk)
    return implementation(_PACKAGE, backend).accumulate_adjoint(cotangents, steps, order)


@accumulate.register_fake
def _(control: Tensor, *_: Any) -> tuple[Tensor, ...]:
    batch, horizon, dof = control.shape
    return tuple(control.new_empty(batch, horizon + 1, dof) for _ in range(4))


@accumulate_adjoint.register_fake
def _(position: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    batch, samples, dof = position.shape
    *_, order, _backend = others
    return position.new_empty(batch, samples - 1, dof), position.new_empty(batch, order, dof)


accumulate.register_vmap(fold_batch(accumulate, 3))
accumulate_adjoint.register_vmap(fold_batch(accumulate_adjoint, 5))

ACCUMULATE = register_family("accumulate", Family(accumulate, accumulate_adjoint, steps_adjoint))
