"""The motion that meets its conditions and active rows, with every derivative."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pullback.errors import UnsupportedError
from pullback.tensor import Function
from pullback.trajectory._checks import concrete
from pullback.trajectory.kernels.states._dispatch import meet_rows

__all__ = ["Conditions", "LeastMotion"]


class Conditions(NamedTuple):
    """What a motion meets: ``sum_d alpha[i, d] x[d, place[i]]`` for each condition ``i``.

    Arguments:
        alpha: ``[..., few, 4]``, parts of position, velocity, acceleration and jerk, in steps.
        place: ``[..., few]`` samples.
    """

    alpha: Tensor
    place: Tensor


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
