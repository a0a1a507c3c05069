"""Where cubic polynomials of a positive number are first none of them positive.

Each is positive on at most two intervals, up to a root of its own. So from a number where one is
positive, all numbers up to the next root of that one are passed at once: none of them would do.
What is found is the smallest number that does, to rounding, after finitely many roots.
"""

from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.kernels._kernel import register_kernel
from pullback.tensor import Function

__all__ = ["SolvePolynomial", "first_kept"]

# Of a polynomial over its power: what counts as kept, well within the margin of the limits.
_TOLERANCE = 1e-9
# A step at least so long, so that rounding cannot hold the search up.
_LEAST_STEP = 1e-12
_MOST_STEPS = 1000


@register_kernel("pullback_trajectory::first_kept")
def first_kept(polynomials: Tensor, powers: Tensor, strict: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The smallest ``h > 0`` at which no polynomial, over its power of ``h``, is positive.

    Arguments:
        polynomials: ``[..., rows, 4]``, coefficients of ``1, h, h^2, h^3``.
        powers: ``[rows]``, integers.
        strict: whether to raise where there is none, for a graph, in which nobody can look.

    Returns:
        ``h [...]``; the row whose root it is, or that stays positive, ``[...]``; and what was found
        ``[...]``: 1 a number, 0 that none would do, -1 that every small one would, -2 no decision.

    Raises:
        ArgumentError: ``strict``, and there is no smallest one.
    """
    batch, (rows, _) = polynomials.shape[:-2], polynomials.shape[-2:]
    flat = polynomials.detach().reshape(-1, rows, 4)
    h, row, found = _begin(flat)
    going = (found == 1).nonzero().squeeze(-1)
    for _ in range(_MOST_STEPS):
        value = _evaluate(flat[going], h[going, None]) / _powers(h[going])[:, powers]
        worst, which = value.max(-1)
        beyond = worst > _TOLERANCE
        going, which = going[beyond], which[beyond]
        if not going.numel():
            break
        row[going] = which
        ahead = _next_root(_expand_at(flat[going, which], h[going]))
        found[going] = ahead.isfinite().to(found.dtype)
        h[going] *= 1 + ahead.clamp(min=_LEAST_STEP)
        going = going[found[going] == 1]
    found[going] = -2
    if strict and not bool((found == 1).all()):
        raise ArgumentError(
            "There is no least duration at which the limits are kept.",
            mend="Call it outside torch.compile to be told why.",
        )
    return h.reshape(batch), row.reshape(batch), found.reshape(batch)


@first_kept.register_fake
def _(polynomials: Tensor, powers: Tensor, strict: bool) -> tuple[Tensor, Tensor, Tensor]:
    batch = polynomials.shape[:-2]
    whole = polynomials.new_empty(batch, dtype=torch.int64)
    return polynomials.new_empty(batch), whole, whole.clone()


@first_kept.register_vmap
def _(info: Any, in_dims: Any, polynomials: Tensor, powers: Tensor, strict: bool) -> Any:
    return first_kept(polynomials.movedim(in_dims[0], 0), powers, strict), (0, 0, 0)


def _begin(polynomials: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first root of one that is positive near zero, where the least power decides."""
    batch = polynomials.shape[0]
    h, row = polynomials.new_ones(batch), polynomials.new_zeros(batch, dtype=torch.int64)
    found = torch.full_like(row, -1)
    for power in range(4):
        lead, which = (
            polynomials[..., power]
            .masked_fill((polynomials[..., :power] != 0).any(-1), -torch.inf)
            .max(-1)
        )
        here = ((found == -1) & (lead > 0)).nonzero().squeeze(-1)
        row[here] = which[here]
        chosen = polynomials[here, row[here]]
        h[here] = _next_root(torch.nn.functional.pad(chosen[..., power:], (0, power)))
        found[here] = h[here].isfinite().to(found.dtype)
        if bool((found != -1).all()):
            break
    return h.nan_to_num(posinf=1.0), row, found


def _evaluate(polynomials: Tensor, h: Tensor) -> Tensor:
    c0, c1, c2, c3 = polynomials.unbind(-1)
    return ((c3 * h + c2) * h + c1) * h + c0


def _expand_at(polynomials: Tensor, h: Tensor) -> Tensor:
    """The coefficients in ``y`` at ``h (1 + y)``."""
    c0, c1, c2, c3 = (c * h**power for power, c in enumerate(polynomials.unbind(-1)))
    return torch.stack([c0 + c1 + c2 + c3, c1 + 2 * c2 + 3 * c3, c2 + 3 * c3, c3], dim=-1)


def _next_root(q: Tensor) -> Tensor:
    """The smallest positive root of each ``[..., 4]``, which is positive at zero, or infinity.

    Its inverse is the largest eigenvalue of a matrix: the one of the reversed polynomial, whose
    first coefficient is not zero. The unknown is scaled so that no other one exceeds it.
    """
    ratio = q[..., 1:] / q[..., :1]
    power = torch.arange(1, 4, dtype=q.dtype, device=q.device)
    size = ratio.abs() ** (1 / power)
    unit = size.amax(-1, keepdim=True)
    known = (unit > 0) & unit.isfinite()
    unit = torch.where(known, unit, 1.0)
    scaled = torch.where(known, (size / unit) ** power * ratio.sign(), 0.0)
    matrix = torch.diag_embed(torch.ones_like(scaled[..., 1:]), offset=-1)
    matrix = torch.cat([-scaled.unsqueeze(-2), matrix[..., 1:, :]], dim=-2)
    inverse = torch.linalg.eigvals(matrix)
    real = torch.where((inverse.imag == 0) & (inverse.real > 0), inverse.real, 0.0).amax(-1)
    y = 1 / (real * unit.squeeze(-1))
    # Small eigenvalues have lost digits: two steps of Newton's.
    _, q1, q2, q3 = q.unbind(-1)
    for _ in range(2):
        better = y - _evaluate(q, y) / ((3 * q3 * y + 2 * q2) * y + q1)
        y = torch.where(((better - y).abs() <= 1e-3 * y), better, y)
    return y


class SolvePolynomial(Function):
    """A root ``h [...]`` of each cubic ``c [..., 4]``, from one nearby, with every derivative.

    From ``c(h) = 0`` follows ``dh = -sum_k dc_k h^k / c'(h)``. It is written in terms of ``h``,
    whose derivative it is, so it holds for every order.
    """

    @staticmethod
    def forward(polynomials: Tensor, near: Tensor) -> Tensor:
        """One step of Newton's from a root that is known to rounding."""
        return near - _evaluate(polynomials, near) / _slope(polynomials, near)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the polynomials and their roots."""
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        """The rule of the class."""
        polynomials, h = ctx.saved_tensors
        return _powers(h) * (-cotangent / _slope(polynomials, h)).unsqueeze(-1), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """The rule of the class."""
        polynomials, h = ctx.saved_tensors
        return -(tangents[0] * _powers(h)).sum(-1) / _slope(polynomials, h)


def _slope(polynomials: Tensor, h: Tensor) -> Tensor:
    _, c1, c2, c3 = polynomials.unbind(-1)
    return (3 * c3 * h + 2 * c2) * h + c1


def _powers(h: Tensor) -> Tensor:
    return torch.stack([torch.ones_like(h), h, h**2, h**3], dim=-1)
