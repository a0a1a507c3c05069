"""The check cases of this room, offered through the entry point group ``pullback.cases``."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from pullback.compat import curobo
from pullback.compat.torchlogix import GradFactor
from pullback.compat.unit_scaling import ScalePair, ScaleTracker, scale_bwd, scale_fwd
from pullback.gradients._cases import Inputs, normal, with_tensors, with_values
from pullback.tensor import Case

__all__ = ["cases"]

_BATCH, _HORIZON, _DOF, _RATE = 2, 7, 3, 4.0


def cases() -> Iterator[Case]:
    """Return a case for each Function of the room."""
    for name, function, inputs in (
        ("torchlogix.GradFactor", GradFactor, with_values(0.5)),
        ("torchlogix.GradFactor.tensor", GradFactor, with_tensors((3, 5), (5,))),
        ("unit_scaling.scale_fwd", scale_fwd, with_values(0.5)),
        ("unit_scaling.scale_bwd", scale_bwd, with_values(0.5)),
    ):
        yield Case(name, function, inputs, gradient="surrogate")
    yield Case(
        "unit_scaling.ScaleTracker",
        ScaleTracker,
        lambda generator: (normal(generator, 3, 5), ScalePair()),
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
            yield Case(f"curobo.{kernel}", getattr(curobo, kernel), _motion(timing, bool(index)))


def _dense(generator: Generator) -> tuple[Tensor, ...]:
    actions, start = normal(generator, _BATCH, _HORIZON, _DOF), normal(generator, _BATCH, _DOF)
    mask, shift = curobo.build_start_state_mask(_HORIZON, actions)
    first = curobo.build_fd_matrix(_HORIZON, dtype=torch.float64, SHIFT=True) * _RATE
    return actions, start, mask, shift, first, first @ first, first @ first @ first


def _motion(timing: Tensor, indexed: bool) -> Inputs:
    def make(generator: Generator) -> tuple[Any, ...]:
        starts = [normal(generator, 4 if indexed else _BATCH, _DOF) for _ in range(3)]
        actions = normal(generator, _BATCH, _HORIZON, _DOF)
        index = [torch.tensor([3, 1])] if indexed else []
        return (actions, *starts, *index, None, None, None, None, timing, None)

    return make
