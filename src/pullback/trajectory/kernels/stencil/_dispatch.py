"""The stencil as two `torch.library` operators over three implementations.

The operators carry kernels and no rule of differentiation: that is `_function`'s.
"""

import torch
from torch import Tensor

from pullback.internal.kernels._backend import implementation, is_plain
from pullback.internal.kernels._folding import fold_batch

__all__ = ["stencil", "stencil_adjoint"]

_PACKAGE = "pullback.trajectory.kernels.stencil"


def stencil(
    x: Tensor, conditions: Tensor, weights: Tensor, geometry: tuple[int, ...], backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`_reference.apply_stencil` by a chosen backend.

    Arguments:
        x: ``[batch, horizon, dof]`` positions.
        conditions: ``[batch, conditions, dof]`` boundary values.
        weights: ``[1 or batch, rows, 3, width + conditions]``. Only rows at the ends weigh boundary
            values: a backend may take those weights of inside rows as zero without a look.
        geometry: `Layout.geometry`.
        backend: as `choose_backend` returns it.
    """
    if is_plain(x, conditions, weights):
        return implementation(_PACKAGE, backend).apply_stencil(x, conditions, weights, geometry)
    return _stencil(x, conditions, weights, list(geometry), backend)


def stencil_adjoint(
    cotangents: tuple[Tensor, Tensor, Tensor, Tensor],
    weights: Tensor,
    geometry: tuple[int, ...],
    backend: str,
) -> tuple[Tensor, Tensor]:
    """`_reference.apply_stencil_adjoint` by a chosen backend.

    Arguments:
        cotangents: of position, velocity, acceleration and jerk.
        weights: as in `stencil`.
        geometry: as in `stencil`.
        backend: as in `stencil`.
    """
    if is_plain(*cotangents, weights):
        return implementation(_PACKAGE, backend).apply_stencil_adjoint(
            cotangents, weights, geometry
        )
    return _stencil_adjoint(*cotangents, weights, list(geometry), backend)


@torch.library.custom_op("pullback::stencil", mutates_args=())
def _stencil(
    x: Tensor, conditions: Tensor, weights: Tensor, geometry: list[int], backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return implementation(_PACKAGE, backend).apply_stencil(x, conditions, weights, tuple(geometry))


@_stencil.register_fake
def _(
    x: Tensor, conditions: Tensor, weights: Tensor, geometry: list[int], backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape), x.new_empty(x.shape), x.new_empty(x.shape)


@torch.library.custom_op("pullback::stencil_adjoint", mutates_args=())
def _stencil_adjoint(
    position: Tensor,
    velocity: Tensor,
    acceleration: Tensor,
    jerk: Tensor,
    weights: Tensor,
    geometry: list[int],
    backend: str,
) -> tuple[Tensor, Tensor]:
    cotangents = (position, velocity, acceleration, jerk)
    return implementation(_PACKAGE, backend).apply_stencil_adjoint(
        cotangents, weights, tuple(geometry)
    )


@_stencil_adjoint.register_fake
def _(
    position: Tensor,
    velocity: Tensor,
    acceleration: Tensor,
    jerk: Tensor,
    weights: Tensor,
    geometry: list[int],
    backend: str,
) -> tuple[Tensor, Tensor]:
    batch, _, dof = position.shape
    conditions = weights.shape[3] - geometry[1]
    return position.new_empty(position.shape), position.new_empty(batch, conditions, dof)


_stencil.register_vmap(fold_batch(_stencil, 3))
_stencil_adjoint.register_vmap(fold_batch(_stencil_adjoint, 5))
