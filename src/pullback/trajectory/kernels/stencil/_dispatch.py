"""The stencil as two `torch.library` operators over three implementations.

The operators carry kernels and no rule of differentiation: that is `Levels`'.
"""

from typing import Any

from torch import Tensor

from pullback.internal.kernels._backend import implementation
from pullback.internal.kernels._folding import fold_batch
from pullback.internal.kernels._kernel import register_kernel
from pullback.trajectory.kernels._function import Family, register_family
from pullback.trajectory.kernels.stencil._layout import read_geometry
from pullback.trajectory.kernels.stencil._reference import weights_adjoint

__all__ = ["STENCIL", "stencil", "stencil_adjoint"]

_PACKAGE = "pullback.trajectory.kernels.stencil"


@register_kernel("pullback::stencil")
def stencil(
    x: Tensor, conditions: Tensor, weights: Tensor, layout: str, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`_reference.apply_stencil` by a chosen backend.

    Only rows at the ends weigh boundary values: a backend may take those weights of inside rows as
    zero without a look.
    """
    kernels = implementation(_PACKAGE, backend)
    return kernels.apply_stencil(x, conditions, weights, read_geometry(layout))


@register_kernel("pullback::stencil_adjoint")
def stencil_adjoint(
    position: Tensor,
    velocity: Tensor,
    acceleration: Tensor,
    jerk: Tensor,
    weights: Tensor,
    layout: str,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """`_reference.apply_stencil_adjoint` of four cotangents; the others as in `stencil`."""
    cotangents = (position, velocity, acceleration, jerk)
    kernels = implementation(_PACKAGE, backend)
    return kernels.apply_stencil_adjoint(cotangents, weights, read_geometry(layout))


@stencil.register_fake
def _(x: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for _ in range(4))


@stencil_adjoint.register_fake
def _(position: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    batch, _, dof = position.shape
    *_, weights, layout, _backend = others
    conditions = weights.shape[3] - read_geometry(layout).width
    return position.new_empty(position.shape), position.new_empty(batch, conditions, dof)


stencil.register_vmap(fold_batch(stencil, 3))
stencil_adjoint.register_vmap(fold_batch(stencil_adjoint, 5))


def _weigh(
    cotangents: tuple[Tensor, ...], x: Tensor, conditions: Tensor, weights: Tensor, layout: str
) -> Tensor:
    return weights_adjoint(cotangents[1:], x, conditions, weights, read_geometry(layout))


STENCIL = register_family("stencil", Family(stencil, stencil_adjoint, _weigh))
