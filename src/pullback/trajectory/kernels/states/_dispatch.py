"""The program over states as two operators: which rows are active, and the motion that meets them.

Tensors are in steps of time: a jerk is what the acceleration changes by in a step. They run on the
CPU whatever the device: a recursion over samples is no work for a GPU.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.kernels._backend import cpu_or_reference, implementation
from pullback.internal.kernels._folding import broadcast_batch
from pullback.internal.kernels._kernel import register_kernel
from pullback.internal.kernels._shapes import broadcast_shapes
from pullback.trajectory.kernels.states import _search
from pullback.trajectory.kernels.states._program import Program, meet, pick, whole

__all__ = ["ROWS", "bound_rows", "find_rows", "meet_rows"]

# What is limited at a sample, of its position, velocity and acceleration and the jerk after it. A
# spline lies between its control points: those of the velocity are half a step away from samples,
# those of the position a third. Where an end is free its own velocity is limited too.
ROWS = {
    "velocity": (0.0, 1.0, 1 / 2, 0.0),
    "acceleration": (0.0, 0.0, 1.0, 0.0),
    "jerk": (0.0, 0.0, 0.0, 1.0),
    "position": (1.0, 0.0, 0.0, 0.0),
    "ahead": (1.0, 1 / 3, 0.0, 0.0),
    "behind": (1.0, -1 / 3, 0.0, 0.0),
    "end velocity": (0.0, 1.0, 0.0, 0.0),
}
# Programs that are solved together: as many as a cache holds.
_TOGETHER = 64
# Passes for derivatives that are as exact as the motion.
_PATIENCE = 2
_CPU = torch.device("cpu")


def _numbers(tensor: Tensor, batch: torch.Size, rank: int) -> np.ndarray:
    """A tensor ``[..., rank dimensions]`` as an array with one batch dimension, the last one."""
    wide = tensor.detach().expand((*batch, *tensor.shape[tensor.dim() - rank :]))
    wide = wide.reshape((batch.numel(), *wide.shape[len(batch) :])).cpu().numpy()
    return wide.transpose(*range(1, wide.ndim), 0)


def _tensor(array: np.ndarray, batch: torch.Size, device: torch.device) -> Tensor:
    """The inverse of it."""
    whole = torch.from_numpy(np.moveaxis(array, -1, 0).copy()).to(device)
    return whole.reshape((*batch, *whole.shape[1:]))


def _programs(
    scale: Tensor, place: Tensor, alpha: Tensor, energy: Tensor, order: int, kinds: str
) -> Iterator[tuple[np.ndarray, Program]]:
    """The programs, several at once, and which they are."""
    batch, samples = scale.shape[:-2], scale.shape[-1]
    parts = (scale, 2), (alpha, 2), (place, 1), (energy, 0)
    scales, alphas, places, energies = (_numbers(part, batch, rank) for part, rank in parts)
    h = 1 / (samples - 1)
    units = h ** np.arange(4)
    form = np.array([ROWS[kind] for kind in kinds.split(",") if kind]).reshape(-1, 4) * units
    cost = np.array([0, 0, h**6] if order == 3 else [h**4, h**5 / 2, h**6 / 3])[:, None]
    kernels = implementation("pullback.trajectory.kernels.states", cpu_or_reference(_CPU))
    for first in range(0, batch.numel(), _TOGETHER):
        some = whole(np.arange(first, min(first + _TOGETHER, batch.numel())))
        conditions = pick(alphas, some) * units[:, None], pick(places, some)
        yield (
            some,
            Program(pick(scales, some), form, *conditions, cost / energies[some], order, kernels),
        )


@register_kernel("pullback_trajectory::find_rows")
def find_rows(
    level: Tensor, scale: Tensor, place: Tensor, alpha: Tensor, energy: Tensor,
    order: int, kinds: str, strict: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """`_search.Found` of programs with levels and scales ``[..., kinds, samples]``, in steps."""
    batch = level.shape[:-2]
    levels = _numbers(level, batch, 2)
    active, kink = np.zeros(levels.shape, np.int8), np.zeros(batch.numel(), bool)
    found, x = np.zeros(batch.numel(), bool), np.empty((4, *levels.shape[1:]))
    units = (1 / (levels.shape[1] - 1)) ** np.arange(4.0)[:, None, None]
    for some, program in _programs(scale.expand_as(level), place, alpha, energy, order, kinds):
        own = _search.search(program, pick(levels, some))
        active[..., some], kink[some], found[some] = own[:3]
        x[..., some] = own.x * units
    if strict and not found.all():
        raise ArgumentError(
            f"The limits on {kinds.replace(',', ', ')} cannot be met in the given time.",
            mend="Call it outside torch.compile to be told which limit, and the least duration.",
        )
    first, second, third, fourth = (
        _tensor(part, batch, level.device) for part in (active, kink, found, x)
    )
    return first, second, third, fourth


def bound_rows(
    level: Tensor, scale: Tensor, place: Tensor, alpha: Tensor, kinds: str, precision: float | None
) -> tuple[Tensor, Tensor]:
    """`_search.bound`, each ``[...]`` on the CPU."""
    batch, one = level.shape[:-2], torch.ones((), dtype=torch.float64, device=level.device)
    levels = _numbers(level, batch, 2)
    low, high = np.zeros(batch.numel()), np.zeros(batch.numel())
    for some, program in _programs(scale.expand_as(level), place, alpha, one, 3, kinds):
        own = pick(levels, some)
        low[some], high[some] = _search.bound(program, own, precision)
    return torch.from_numpy(low).reshape(batch), torch.from_numpy(high).reshape(batch)


@register_kernel("pullback_trajectory::meet_rows")
def meet_rows(
    alpha: Tensor, place: Tensor, scale: Tensor, active: Tensor, q: Tensor, b: Tensor,
    target: Tensor, order: int, kinds: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`_program.meet` for columns ``[..., columns, ...]``, in steps: ``x``, ``y`` and ``f``."""
    batch = broadcast_shapes(
        alpha.shape[:-2], active.shape[:-2], q.shape[:-3], b.shape[:-2], target.shape[:-3]
    )
    samples, one = q.shape[-1], torch.ones((), dtype=torch.float64, device=q.device)
    scale = scale.expand((*batch, *scale.shape[-2:]))
    units = (1 / (samples - 1)) ** np.arange(4.0)[:, None, None]
    given = (active, 2), (q, 3), (b, 2), (target, 3)
    actives, forces, rights, targets = (_numbers(part, batch, rank) for part, rank in given)
    found = np.empty(forces.shape), np.empty(rights.shape), np.empty(targets.shape)
    for some, program in _programs(scale, place, alpha, one, order, kinds):
        x, y, f, _ = meet(
            program, pick(actives, some) != 0, pick(targets, some) * program.scale,
            pick(forces, some) * units, pick(rights, some), patience=_PATIENCE,
        )  # fmt: skip
        for part, value in zip(found, (x * units, y, f * program.scale), strict=True):
            part[..., some] = value
    x, y, f = (_tensor(part, batch, q.device) for part in found)
    return x, y, f


@find_rows.register_fake
def _(level: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, new = level.shape[:-2], level.new_empty
    kink, found = new(batch, dtype=torch.bool), new(batch, dtype=torch.bool)
    return new(level.shape, dtype=torch.int8), kink, found, new((*batch, 4, level.shape[-1]))


@meet_rows.register_fake
def _(alpha: Tensor, place: Tensor, scale: Tensor, active: Tensor, q: Tensor, b: Tensor,
      target: Tensor, *_: Any) -> tuple[Tensor, ...]:  # fmt: skip
    batch = broadcast_shapes(
        alpha.shape[:-2], active.shape[:-2], q.shape[:-3], b.shape[:-2], target.shape[:-3]
    )
    parts = (q, 3), (b, 2), (target, 3)
    return tuple(q.new_empty((*batch, *part.shape[part.dim() - rank :])) for part, rank in parts)


find_rows.register_vmap(broadcast_batch(find_rows, (2, 2, 1, 2, 0)))
meet_rows.register_vmap(broadcast_batch(meet_rows, (2, 1, 2, 2, 3, 2, 3)))
