"""The program over states: which rows are active, and the motion that meets them, differentiable.

Two operators, and a Function over the second one. Tensors are in steps of time: a jerk is what the
acceleration changes by in a step. They run on the CPU whatever the device: a recursion over samples
is no work for a GPU.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pullback.errors import ArgumentError, UnsupportedError
from pullback.internal.kernels._backend import cpu_or_reference, implementation
from pullback.internal.kernels._kernel import broadcast_batch, broadcast_shapes, register_kernel
from pullback.tensor import Function
from pullback.trajectory._checks import concrete
from pullback.trajectory.kernels.states import _search
from pullback.trajectory.kernels.states._program import Program, meet, pick, whole

__all__ = ["ROWS", "Conditions", "LeastMotion", "bound_rows", "find_rows"]


class Row(NamedTuple):
    """What is limited at a sample."""

    form: tuple[float, ...]  # of its position, velocity and acceleration and the jerk after it
    limit: str  # that it keeps
    middle: float  # where it is, from its sample on, in steps
    samples: Any  # that have one: no control point is outside of the motion


_ALL, _STEPS = slice(None), slice(None, -1)
# A spline lies between its control points: those of the velocity are half a step away from samples,
# those of the position a third. Where an end is free its own velocity is limited too.
ROWS = {
    "velocity": Row((0.0, 1.0, 1 / 2, 0.0), "velocity", 0.5, _STEPS),
    "acceleration": Row((0.0, 0.0, 1.0, 0.0), "acceleration", 0.0, _ALL),
    "jerk": Row((0.0, 0.0, 0.0, 1.0), "jerk", 0.5, _STEPS),
    "position": Row((1.0, 0.0, 0.0, 0.0), "position", 0.0, _ALL),
    "ahead": Row((1.0, 1 / 3, 0.0, 0.0), "position", 0.5, _STEPS),
    "behind": Row((1.0, -1 / 3, 0.0, 0.0), "position", -0.5, slice(1, None)),
    "end velocity": Row((0.0, 1.0, 0.0, 0.0), "velocity", 0.0, [0, -1]),
}
# Programs that are solved together: as many as a cache holds.
_TOGETHER = 64
# Passes for derivatives that are as exact as the motion.
_PATIENCE = 2
_CPU = torch.device("cpu")
# Of the parts of a condition, by what rounding may miss it: 3e-9 for 600 points.
_MET = 1e-8


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
    form = np.array([ROWS[kind].form for kind in kinds.split(",") if kind]).reshape(-1, 4) * units
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
        force, right = pick(forces, some) * units, pick(rights, some)
        x, y, f, _ = meet(
            program, pick(actives, some) != 0, pick(targets, some) * program.scale, force, right,
            patience=_PATIENCE,
        )  # fmt: skip
        pulled = np.abs(force).max((1, 2))[:, None] > 0  # they are met beside the pull
        _check_met(program, x, np.where(pulled, 0.0, right))
        for part, value in zip(found, (x * units, y, f * program.scale), strict=True):
            part[..., some] = value
    x, y, f = (_tensor(part, batch, q.device) for part in found)
    return x, y, f


def _check_met(program: Program, x: np.ndarray, b: np.ndarray) -> None:
    """Refuse motions that miss the conditions ``b``, where these are finite and not all zero."""
    parts = Program.met(program._replace(alpha=np.abs(program.alpha)), np.abs(x)) + np.abs(b)
    missed, most = np.abs(program.met(x) - b).max(1, initial=0.0), parts.max(1, initial=0.0)
    asked = b.any(1) & np.isfinite(b).all(1)
    if (asked & ~(missed <= _MET * most)).any():
        raise ArgumentError(
            "The points of a motion are so many that rounding leaves none that meets them.",
            given=f"{len(program.place)} conditions at {program.scale.shape[1]} samples",
            expected=f"conditions that are met to {_MET:g} of their parts",
            mend="Take more samples, or plan through fewer points and concatenate the motions.",
        )


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


class Conditions(NamedTuple):
    """What a motion meets: ``sum_d alpha[i, d] x[d, place[i]]`` for each condition ``i``."""

    alpha: Tensor  # [..., few, 4], parts of position, velocity, acceleration and jerk, in steps
    place: Tensor  # [..., few] samples


class LeastMotion(Function):
    """``P x + A' y + G' f = q``, ``A x = b``, and ``G x = r`` in the active rows ``G``.

    The matrix of it, ``K``, is symmetric, so with ``w = K^-1 c`` for cotangents ``c`` of ``x``,
    ``y`` and ``f`` those of ``q``, ``b`` and ``r`` are the parts of ``w``, and that of ``A`` is
    ``-(y w_x' + w_y x')``: of ``K z = c`` follows ``dz = -K^-1 dK z``. One more of the same, in
    either mode and to every order.

    Where a row is met without a push, a ``kink``, derivatives are those of the side on which it is
    not active. The second one does not exist, and is refused.

    Source: Amos and Kolter, OptNet, 2017, section 3.
    """

    @staticmethod
    def forward(
        alpha: Tensor, q: Tensor, b: Tensor, target: Tensor, place: Tensor, scale: Tensor,
        active: Tensor, kink: Tensor, order: int, kinds: str,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Solve it."""
        return meet_rows(alpha, place, scale, active, q, b, target, order, kinds)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the matrix, its solution, and what the right sides are shaped like."""
        ctx.save_for_backward(*inputs[:8], output[0], output[1])
        ctx.rest = inputs[8:]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        """Solve with the same matrix."""
        alpha, *rights, place, _, _, _, x, y = ctx.saved_tensors
        w, v, u = _again(ctx, cotangents)
        of_alpha = None
        if ctx.needs_input_grad[0]:
            outer = y.unsqueeze(-1) * _at(w, place) + v.unsqueeze(-1) * _at(x, place)
            of_alpha = -outer.sum(-3).sum_to_size(alpha.shape)
        pairs = zip((w, v, u), rights, strict=True)
        return of_alpha, *(part.sum_to_size(like.shape) for part, like in pairs), *(None,) * 6

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Solve with the same matrix."""
        # Written out: the derived rule compares <w, Jv> with <J'w, v> to a few rounding errors,
        # and a badly conditioned system differs by its condition.
        place, scale, x, y = (ctx.saved_tensors[i] for i in (4, 5, 8, 9))
        of_alpha, of_q, of_b, of_target = tangents[:4]
        if of_alpha is not None:
            turned = of_alpha.unsqueeze(-3)
            moved = (turned * _at(x, place)).sum(-1)
            index = place.unsqueeze(-2).unsqueeze(-2)
            force = (turned * y.unsqueeze(-1)).mT
            pull = torch.zeros_like(x).scatter_add(-1, index.expand_as(force), force)
            of_q = -pull if of_q is None else of_q - pull
            of_b = -moved if of_b is None else of_b - moved
        rows = torch.zeros_like(scale).unsqueeze(-3)
        like = (x, y, rows.expand(*x.shape[:-2], *scale.shape[-2:]))
        rights = [
            torch.zeros_like(part) if given is None else given
            for part, given in zip(like, (of_q, of_b, of_target), strict=True)
        ]
        return _again(ctx, rights)


def _at(x: Tensor, place: Tensor) -> Tensor:
    """The states and jerks ``[..., columns, few, 4]`` at the places of conditions."""
    index = place.unsqueeze(-2).unsqueeze(-2)
    index = index.expand(*x.shape[:-1], index.shape[-1])
    return x.gather(-1, index).mT


def _again(ctx: Any, rights: Any) -> tuple[Tensor, Tensor, Tensor]:
    alpha, q, b, target, place, scale, active, kink, _, _ = ctx.saved_tensors
    order, kinds = ctx.rest
    of_q, of_b, of_target = rights
    x, y, f = LeastMotion.apply(
        alpha, of_q, of_b, of_target, place, scale, active, kink, order, kinds
    )
    given = (kink, alpha, q, b, target)
    return OneSide.apply(x, *given), OneSide.apply(y, *given), OneSide.apply(f, *given)


class OneSide(Function):
    """A derivative that is that of a side at a kink: there it has none itself.

    It follows from what the motion is given, on which it depends by jumps alone.
    """

    @staticmethod
    def forward(part: Tensor, kink: Tensor, *given: Tensor) -> Tensor:
        """The derivative."""
        return part.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep where there is a kink."""
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])
        ctx.count = len(inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
        """Refuse it at a kink."""
        _refuse(*ctx.saved_tensors)
        return cotangent, *(None,) * (ctx.count - 1)

    @staticmethod
    def jvp(ctx: Any, tangent: Any, *_: Any) -> Tensor:
        """Refuse it at a kink."""
        _refuse(*ctx.saved_tensors)
        return tangent


def _refuse(kink: Tensor) -> None:
    known = concrete(kink)
    if known is not None and bool(known.any()):
        raise UnsupportedError(
            "The motion has no second derivative here: a limit is just met.",
            given=f"{int(known.sum())} of {known.numel()} joints, where the least change of "
            "what is given decides whether a limit acts",
            expected="limits that are kept with room to spare, or that the motion pushes against",
            mend="Change the limits or the duration a little; the first derivative is that of the "
            "side on which the limit does not act.",
        )
