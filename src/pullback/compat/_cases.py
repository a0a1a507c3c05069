"""The check cases of this room, offered through the entry point group ``pullback.cases``."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from pullback.compat import curobo
from pullback.compat.torchlogix import GradFactor
from pullback.compat.unit_scaling import ScalePair, ScaleTracker, scale_bwd, scale_fwd
from pullback.tensor import Case

__all__ = ["cases"]

Inputs = Callable[[Generator], tuple[Any, ...]]

_BATCH, _HORIZON, _DOF, _RATE = 2, 7, 3, 4.0


def cases() -> Iterator[Case]:
    """Return a case for each Function of the room.

    Example:
        >>> from pullback.compat._cases import cases
        >>> next(cases()).name
        'torchlogix.GradFactor'
    """
    yield Case("torchlogix.GradFactor", GradFactor, _with(0.5), gradient="surrogate")
    yield Case("torchlogix.GradFactor.tensor", GradFactor, _with_tensor, gradient="surrogate")
    yield Case("unit_scaling.scale_fwd", scale_fwd, _with(0.5), gradient="surrogate")
    yield Case("unit_scaling.scale_bwd", scale_bwd, _with(0.5), gradient="surrogate")
    yield Case(
        "unit_scaling.ScaleTracker",
        ScaleTracker,
        lambda generator: (_normal(generator, 3, 5), ScalePair()),
    )
    yield Case("curobo.CliqueTensorStep", curobo.CliqueTensorStep, _dense)
    rate, steps = torch.tensor([_RATE]).double(), torch.full((_HORIZON,), 1 / _RATE).double()
    for name, timing in (
        ("CliqueTensorStep{}Kernel", rate),
        ("CliqueTensorStep{}CentralDifferenceKernel", rate),
        ("AccelerationTensorStep{}Kernel", steps),
    ):
        for index in ("", "Idx"):
            kernel = name.format(index)
            make = _indexed(timing) if index else _plain(timing)
            yield Case(f"curobo.{kernel}", getattr(curobo, kernel), make)


def _normal(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)


def _with(factor: float) -> Inputs:
    return lambda generator: (_normal(generator, 3, 5), factor)


def _with_tensor(generator: Generator) -> tuple[Tensor, Tensor]:
    return _normal(generator, 3, 5), _normal(generator, 5)


def _dense(generator: Generator) -> tuple[Tensor, ...]:
    actions, start = _normal(generator, _BATCH, _HORIZON, _DOF), _normal(generator, _BATCH, _DOF)
    mask, shift = curobo.build_start_state_mask(_HORIZON, actions)
    first = curobo.build_fd_matrix(_HORIZON, dtype=torch.float64, SHIFT=True) * _RATE
    return actions, start, mask, shift, first, first @ first, first @ first @ first


def _plain(timing: Tensor) -> Inputs:
    def make(generator: Generator) -> tuple[Any, ...]:
        starts = (_normal(generator, _BATCH, _DOF) for _ in range(3))
        actions = _normal(generator, _BATCH, _HORIZON, _DOF)
        return (actions, *starts, None, None, None, None, timing, None)

    return make


def _indexed(timing: Tensor) -> Inputs:
    def make(generator: Generator) -> tuple[Any, ...]:
        starts = (_normal(generator, 4, _DOF) for _ in range(3))
        actions, index = _normal(generator, _BATCH, _HORIZON, _DOF), torch.tensor([3, 1])
        return (actions, *starts, index, None, None, None, None, timing, None)

    return make
