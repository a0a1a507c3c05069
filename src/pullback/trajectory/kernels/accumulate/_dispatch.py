"""The chain of sums as two `torch.library` operators over three implementations.

The operators carry kernels and no rule of differentiation: that is `_function`'s.
"""

import torch
from torch import Tensor

from pullback.internal.kernels._backend import implementation, is_plain
from pullback.internal.kernels._folding import fold_batch

__all__ = ["accumulate", "accumulate_adjoint"]

_PACKAGE = "pullback.trajectory.kernels.accumulate"


def accumulate(
    control: Tensor, initial: Tensor, steps: Tensor, order: int, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`_reference.accumulate` by a chosen backend.

    Arguments:
        control: ``[batch, steps, dof]``.
        initial: ``[batch, order, dof]`` states at sample 0.
        steps: ``[1 or batch, steps or 1, 3]`` coefficients.
        order: 1, 2 or 3.
        backend: as `choose_backend` returns it.
    """
    if is_plain(control, initial, steps):
        return implementation(_PACKAGE, backend).accumulate(control, initial, steps, order)
    return _accumulate(control, initial, steps, order, backend)


def accumulate_adjoint(
    cotangents: tuple[Tensor, Tensor, Tensor, Tensor],
    steps: Tensor,
    order: int,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """`_reference.accumulate_adjoint` by a chosen backend.

    Arguments:
        cotangents: of position, velocity, acceleration and jerk.
        steps: as in `accumulate`.
        order: as in `accumulate`.
        backend: as in `accumulate`.
    """
    if is_plain(*cotangents, steps):
        return implementation(_PACKAGE, backend).accumulate_adjoint(cotangents, steps, order)
    return _accumulate_adjoint(*cotangents, steps, order, backend)


@torch.library.custom_op("pullback::accumulate", mutates_args=())
def _accumulate(
    control: Tensor, initial: Tensor, steps: Tensor, order: int, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return implementation(_PACKAGE, backend).accumulate(control, initial, steps, order)


@_accumulate.register_fake
def _(
    control: Tensor, initial: Tensor, steps: Tensor, order: int, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, horizon, dof = control.shape
    shape = (batch, horizon + 1, dof)
    empty = control.new_empty
    return empty(shape), empty(shape), empty(shape), empty(shape)


@torch.library.custom_op("pullback::accumulate_adjoint", mutates_args=())
def _accumulate_adjoint(
    position: Tensor,
    velocity: Tensor,
    acceleration: Tensor,
    jerk: Tensor,
    steps: Tensor,
    order: int,
    backend: str,
) -> tuple[Tensor, Tensor]:
    cotangents = (position, velocity, acceleration, jerk)
    return implementation(_PACKAGE, backend).accumulate_adjoint(cotangents, steps, order)


@_accumulate_adjoint.register_fake
def _(
    position: Tensor,
    velocity: Tensor,
    acceleration: Tensor,
    jerk: Tensor,
    steps: Tensor,
    order: int,
    backend: str,
) -> tuple[Tensor, Tensor]:
    batch, samples, dof = position.shape
    return position.new_empty(batch, samples - 1, dof), position.new_empty(batch, order, dof)


_accumulate.register_vmap(fold_batch(_accumulate, 3))
_accumulate_adjoint.register_vmap(fold_batch(_accumulate_adjoint, 5))
