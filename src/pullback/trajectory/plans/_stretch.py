"""The least duration of a motion whose ends move, or whose ranges leave zero out.

All times are stretched alike, so per step the motion is a polynomial of the step ``h``: points
count for ``1``, a velocity given at an end for ``h``, an acceleration for ``h^2``, a jerk for
``h^3``. A limit ``u`` on the ``k``-th derivative is ``r(h) <= u h^k`` in each row. All conditions
are cubics, and they need not stay kept once they are: with more time a motion may swing back.
"""

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.kernels._shapes import broadcast_shapes
from pullback.internal.torch import forward_level, is_functorch_wrapped_tensor
from pullback.trajectory._knots import concrete
from pullback.trajectory._limits import Limits
from pullback.trajectory._state import State
from pullback.trajectory.plans._aim import aim_of
from pullback.trajectory.plans._decided import Decided
from pullback.trajectory.plans._plan import POWERS, Plan
from pullback.trajectory.plans._polynomials import SolvePolynomial, first_kept
from pullback.trajectory.plans._rows import limit_of, row_kinds, row_values, whole_ranges
from pullback.trajectory.plans._within import combine

__all__ = ["SPARE", "are_constants", "keeps_zero", "least_kept_step", "stands_still"]

# Of half the width of a range, more than `first_kept` counts as kept.
SPARE = 2e-9
# Of the width: nearer to zero an end is smaller than what rounding makes of a zero.
_INSIDE = 1e-6


def stands_still(start: State, goal: State) -> bool:
    """Whether nothing that is given at an end moves, as far as can be read."""
    return all(_is_zero(getattr(end, part)) for end in (start, goal) for part in end.given)


def are_constants(start: State, goal: State) -> bool:
    """Whether nobody asks for derivatives with respect to what is given at the ends."""
    parts = [getattr(end, part) for end in (start, goal) for part in end.given]
    tensors = [part for part in parts if isinstance(part, Tensor)]
    return not tensors or not (
        forward_level() >= 0
        or any(part.requires_grad or is_functorch_wrapped_tensor(part) for part in tensors)
    )


def _is_zero(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_zero(part) for part in value)
    if not isinstance(value, Tensor):
        return value == 0
    known = concrete(value)
    return known is not None and not bool((known != 0).any())


def keeps_zero(limits: Limits) -> bool:
    """Whether the ranges of the derivatives are known to have zero well inside."""
    ranges = (getattr(limits, kind) for kind in limits.given if kind != "position")
    return all(_has_zero(*pair) for pair in ranges if isinstance(pair, tuple))


def _has_zero(lower: Tensor | float, upper: Tensor | float) -> bool:
    lower, upper = torch.as_tensor(lower), torch.as_tensor(upper)
    # Below vmap the two may be batched unlike each other, so they are compared above it.
    inside = concrete(torch.minimum(-lower, upper) > _INSIDE * (upper - lower))
    return inside is not None and bool(inside.all())


def least_kept_step(plan: Plan, basis: Tensor, limits: Limits) -> Tensor:
    """Seconds between samples, the least with which the limits are kept: ``[...]``.

    Raises:
        ArgumentError: none does, or every small one.
    """
    polynomials, powers, kinds = _polynomials(plan, basis, limits)
    step, row, found = first_kept(polynomials.detach(), powers, torch.compiler.is_compiling())
    known = concrete(found)
    if known is not None and not bool((known == 1).all()):
        _refuse(known, concrete(row), kinds)
    chosen = row[..., None, None].expand(*row.shape, 1, 4)
    return SolvePolynomial.apply(polynomials.gather(-2, chosen).squeeze(-2), step)


def _refuse(found: Tensor, row: Tensor | None, kinds: list[str]) -> None:
    if bool((found == -1).any()):
        raise ArgumentError(
            "The limits are kept however short the duration is, so none is the least.",
            given="a motion that needs nothing of what is limited, or points that are all alike",
            expected="a limit that a short motion exceeds, such as one on velocity",
        )
    failed = tuple((found != 1).nonzero()[0].tolist())
    if bool((found == -2).any()):
        raise ArgumentError(
            "The least duration was not decided.",
            given=f"trajectory {list(failed)}, whose limits rounding leaves open",
            mend="Widen the limits a little.",
        )
    kind = kinds[int(row[failed])] if row is not None else "a derivative"
    raise ArgumentError(
        "The motion of least jerk between these ends keeps the limits at no duration.",
        given=f"the limit on {kind}" + (f" in trajectory {list(failed)}" if failed else ""),
        expected="wider limits, or slower ends",
        mend="Use minimum_duration, or minimum_jerk with limits, which bend the motion.",
    )


def _polynomials(plan: Plan, basis: Tensor, limits: Limits) -> tuple[Tensor, Tensor, list[str]]:
    """Conditions ``[..., rows, 4]`` that are to be at most zero, their powers and their limits."""
    given = _values_by_power(plan)
    forms = [combine(basis, values) for values in given]
    parts, chosen = [], row_kinds(plan, limits)
    decided, whole = plan.decided(chosen), whole_ranges(plan, limits)
    for number, kind in enumerate(chosen):
        values, name = [row_values(kind, form) for form in forms], limit_of(kind)
        kept = decided.free[..., number, None, :]
        parts.append((name, _conditions(values, name, aim_of(plan, limits, name, SPARE), kept)))
        ends = whole[0][..., number, :], whole[1][..., number, :]
        values = _exactly(given, decided, number, values)
        kept = decided.known[..., number, None, :]
        parts.append((name, _conditions(values, name, ends, kept)))
    batch = broadcast_shapes(*(part.shape[:-3] for _, part in parts))
    flat = [part.expand(*batch, *part.shape[-3:]).flatten(-3, -2) for _, part in parts]
    kinds = [
        name for (name, _), part in zip(parts, flat, strict=True) for _ in range(part.shape[-2])
    ]
    powers = torch.tensor([POWERS[kind] for kind in kinds], device=plan.points.device)
    return torch.cat(flat, dim=-2), powers, kinds


def _exactly(
    given: list[Tensor], decided: Decided, number: int, rows: list[Tensor]
) -> list[Tensor]:
    """What is decided of the rows of a kind, by power ``[..., dof, few]``: they are rounded.

    The derivatives of rows are kept: these change with the times of points too.
    """
    index, weights = decided.index[..., number, None, :], decided.weights[..., number, :, :]
    few, found = index.shape[-1], []
    for row, value in zip(rows, given, strict=True):
        exact = (weights @ value).mT
        batch = broadcast_shapes(row.shape[:-1], index.shape[:-1])
        near = row.expand(*batch, -1).gather(-1, index.expand(*batch, few))
        found.append(torch.cat([near + (exact[..., :few] - near).detach(), exact[..., few:]], -1))
    return found


def _values_by_power(plan: Plan) -> list[Tensor]:
    """What the conditions are to be, ``[..., rows, dof]``, apart by the power of the step."""
    powers = [0] * plan.points.shape[-2] + [POWERS[kind] for _, kind, _ in plan.ends]
    values = plan.values(torch.ones_like(plan.step))
    own = torch.tensor(powers, device=plan.points.device).unsqueeze(-1)
    return [torch.where(own == power, values, 0.0) for power in range(4)]


def _conditions(
    values: list[Tensor], kind: str, ends: tuple[Tensor, Tensor], kept: Tensor
) -> Tensor:
    """That ``r(h)`` is between both ends times ``h^k``, as parts of half the range.

    Arguments:
        values: by the power of ``h``, each ``[..., dof, rows]``.
        kind: the limit, whose derivative is the ``k``-th.
        ends: of the range, each ``[..., dof]``.
        kept: ``[..., 1 or dof, rows]``, false where nothing is asked.

    Returns:
        ``[..., dof, 2 rows, 4]``, at most zero where kept.
    """
    half, sides = (ends[1] - ends[0]).unsqueeze(-1) / 2, []
    for sign, end in ((-1, ends[0]), (1, ends[1])):
        scaled = [sign * value / half for value in values]
        scaled[POWERS[kind]] = scaled[POWERS[kind]] - sign * end.unsqueeze(-1) / half
        asked = [torch.where(kept, part, -float(not power)) for power, part in enumerate(scaled)]
        sides.append(torch.stack(torch.broadcast_tensors(*asked), dim=-1))
    return torch.cat(sides, dim=-2)
