"""The rows of a limited motion: what is kept within a range, as parts of that range."""

import math
from operator import itemgetter

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.kernels._shapes import broadcast_shapes
from pullback.trajectory._knots import concrete
from pullback.trajectory.kernels.programs import Problem
from pullback.trajectory.kernels.programs._cubic import Forms, metric_product
from pullback.trajectory.kernels.programs._problem import ROWS
from pullback.trajectory.plans._aim import aim_of
from pullback.trajectory.plans._decided import AT_END
from pullback.trajectory.plans._limits import Limits, range_of
from pullback.trajectory.plans._plan import POWERS, Plan

__all__ = [
    "check_decided",
    "check_given",
    "check_points",
    "check_room",
    "limit_of",
    "problem_of",
    "row_kinds",
    "row_values",
    "whole_ranges",
]

# The control points of each step, beside its samples.
_BETWEEN = ("ahead", "behind")

# Of the size of what is added up.
_ROUNDING = 1e-13


def row_kinds(plan: Plan, limits: Limits) -> tuple[str, ...]:
    """The kinds of rows, in their order."""
    between = _BETWEEN if limits.between and limits.position is not None else ()
    given = [end for end, part, _ in plan.ends if part == "velocity"]
    at_end = (AT_END,) if "velocity" in limits.given and len(given) < 2 else ()
    return limits.given + between + at_end


def limit_of(kind: str) -> str:
    """The limit that a kind of row keeps."""
    return "position" if kind in _BETWEEN else "velocity" if kind == AT_END else kind


def row_values(kind: str, forms: Forms) -> Tensor:
    """What a kind of row limits, per step: ``[..., rows]``."""
    position, velocity, acceleration, jerk = forms
    if kind == "velocity":
        before = velocity[..., :1] - acceleration[..., :1] / 2
        return torch.cat([before, velocity + acceleration / 2], dim=-1)
    if kind == "ahead":
        before = position[..., :1] - 2 * velocity[..., :1] / 3 + acceleration[..., :1] / 6
        return torch.cat([before, position + velocity / 3], dim=-1)
    if kind == "behind":
        after = position[..., -1:] + 2 * velocity[..., -1:] / 3 + acceleration[..., -1:] / 6
        return torch.cat([position - velocity / 3, after], dim=-1)
    own = {"position": position, "acceleration": acceleration, "jerk": jerk, AT_END: velocity}
    return own[kind]


def problem_of(plan: Plan, forms: Forms, limits: Limits, step: Tensor) -> Problem:
    """The program that keeps the limits, for steps of so many seconds.

    A row needs room on both sides of it, so that those that are decided are no part of it: with one
    that is broken it has no solution.
    """
    levels, scales, kinds = [], [], row_kinds(plan, limits)
    energy, free = _energy(plan.order, forms), plan.decided(kinds).free
    fixed = _decided_level(plan, limits, step)
    for number, kind in enumerate(kinds):
        lower, upper = aim_of(plan, limits, limit_of(kind))
        middle, half = (lower + upper) / 2, (upper - lower) / 2
        unit = step.unsqueeze(-1) ** POWERS[limit_of(kind)]
        level = row_values(kind, forms) - (middle * unit).unsqueeze(-1)
        here = free[..., number, : level.shape[-1]].unsqueeze(-2)
        scale = torch.where(here, 1 / (half * unit).unsqueeze(-1), 0.0)
        levels.append(torch.where(here, level * scale, fixed[..., number, :, None]))
        scales.append(scale)
        beyond = (levels[-1].abs() - 1).clamp(min=0).amax(-1) * half * unit
        energy = torch.maximum(energy, _energy_of_change(plan, limit_of(kind), beyond.detach()))
    level = _cat(levels)
    scale = _cat(scales).expand(*level.shape)
    energy = energy.expand(level.shape[:-1])
    # Joints share their conditions, so these have one of them.
    return Problem(level, scale, plan.conditions.unsqueeze(-3), energy, plan.order, kinds)


def _energy(order: int, forms: Forms) -> Tensor:
    """The unit of the metric: its derivative would move the solution by the gap alone.

    Where a polynomial of low degree meets all conditions it is that of rounding alone, which is no
    unit: there it is that of a change as large as the motion.
    """
    metric = metric_product(order, forms.acceleration, forms.jerk)
    middle = forms.position - forms.acceleration / 6
    energy = (metric[..., 1:-1] * middle).sum(-1)
    first = 2 * middle[..., 0] - middle[..., 1] + forms.acceleration[..., 0]
    last = 2 * middle[..., -1] - middle[..., -2] + forms.acceleration[..., -1]
    energy = (energy + metric[..., 0] * first + metric[..., -1] * last).detach()
    steps, size = float(middle.shape[-1]), forms.position.detach().abs().amax(-1)
    rounding = steps * (64 * torch.finfo(size.dtype).eps * size) ** 2
    covered = _smooth_energy(order, steps, torch.where(size > 0, size, torch.ones_like(size)))
    return torch.where(energy > rounding, energy, covered)


def _energy_of_change(plan: Plan, limit: str, beyond: Tensor) -> Tensor:
    """About what a change costs that brings a motion back by as much as it is beyond a limit."""
    return _smooth_energy(max(plan.order - POWERS[limit], 0), float(plan.samples), beyond)


def _smooth_energy(order: int, steps: float, change: Tensor) -> Tensor:
    """Of a change that takes all steps: each has ``1 / steps ** order`` of it as derivative."""
    return change.square() * steps ** (1 - 2 * order if order else 0)


def _cat(parts: list[Tensor]) -> Tensor:
    batch = broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*batch, part.shape[-1]) for part in parts], dim=-1)


def whole_ranges(plan: Plan, limits: Limits) -> tuple[Tensor, Tensor]:
    """Both ends of the range of each kind, ``[..., kinds, dof]``, and what rounding may take.

    Those of a position are relative to the first point.
    """
    ends: tuple[list[Tensor], list[Tensor]] = ([], [])
    for kind in row_kinds(plan, limits):
        lower, upper = range_of(limits, limit_of(kind), plan.points)
        slack = _slack(lower, upper)
        origin = plan.origin.squeeze(-2) if limit_of(kind) == "position" else 0.0
        ends[0].append(lower - slack - origin)
        ends[1].append(upper + slack - origin)
    lower, upper = (torch.stack(torch.broadcast_tensors(*parts), dim=-2) for parts in ends)
    return lower, upper


def _decided_excess(
    plan: Plan, limits: Limits, step: Tensor, ranges: tuple[Tensor, Tensor]
) -> Tensor:
    """How far what is decided is beyond its range, in seconds: ``[..., kinds, rows, dof]``."""
    kinds = row_kinds(plan, limits)
    decided, values = plan.decided(kinds), plan.values(step).unsqueeze(-3)
    powers = torch.tensor([POWERS[limit_of(kind)] for kind in kinds], device=step.device)
    unit = (step.unsqueeze(-1) ** powers)[..., None, None]
    lower, upper = (end.unsqueeze(-2) for end in ranges)
    value = decided.weights @ values / unit
    rounding = _ROUNDING * (decided.weights.abs() @ values.abs()) / unit
    excess = torch.maximum(value - upper, lower - value) - rounding
    return torch.where(decided.known.unsqueeze(-1), excess, -torch.inf)


def _decided_level(plan: Plan, limits: Limits, step: Tensor) -> Tensor:
    """The largest level of what is decided where it is broken, or zero: ``[..., kinds, dof]``."""
    lower, upper = ranges = whole_ranges(plan, limits)
    excess = _decided_excess(plan, limits, step, ranges).amax(-2)
    return torch.where(excess > 0, 1 + 2 * excess / (upper - lower), 0.0).detach()


def check_given(plan: Plan, limits: Limits) -> None:
    """Refuse points and ends beyond their limits: no duration would mend them.

    Raises:
        ArgumentError: something that is given exceeds its limit.
    """
    for end, kind, value in plan.ends:
        if kind in limits.given:
            _check_range(f"{kind} of the {end}", kind, value, limits, plan)
    check_points(plan, limits)


def check_points(plan: Plan, limits: Limits) -> None:
    """Refuse points beyond their limit.

    Raises:
        ArgumentError: one is.
    """
    if "position" in limits.given:
        _check_range("position of a point", "position", plan.points + plan.origin, limits, plan)


def check_decided(plan: Plan, limits: Limits, step: Tensor) -> None:
    """Refuse what is given where it leads beyond a limit, whatever the motion does elsewhere.

    Raises:
        ArgumentError: it does.
    """
    kinds = row_kinds(plan, limits)
    excess = _decided_excess(plan, limits, step, whole_ranges(plan, limits))
    index = plan.decided(kinds).index
    middles = [len(ROWS[kind]) / 2 for kind in kinds]
    place = index - 1.5 + torch.tensor(middles, device=index.device).unsqueeze(-1)
    excess = excess[..., : index.shape[-1], :]  # `check_given` looks at the others
    both = torch.stack(torch.broadcast_tensors(excess, place.unsqueeze(-1)), dim=-1)
    for number, kind in enumerate(kinds):
        known = concrete(both[..., number, :, :, :])
        if known is None or not bool((known[..., 0] > 0).any()):
            continue
        most, where = known.flatten(0, -2)[known[..., 0].argmax()].tolist()
        end, apart = min(("start", where), ("goal", plan.samples - 1 - where), key=itemgetter(1))
        raise ArgumentError(
            f"The {limit_of(kind)} within {_steps(apart)} of the {end}, which is decided by what "
            "is given there, exceeds its limit.",
            given=f"{most:.6g} beyond the limit",
            mend=f"Take more samples, raise the limit on {limit_of(kind)} or give less.",
        )


def _steps(count: float) -> str:
    return "a step" if count <= 1 else f"{math.ceil(count)} steps"


def check_room(plan: Plan, limits: Limits) -> None:
    """Refuse points where a motion could only just touch its limit between samples.

    Raises:
        ArgumentError: a point that is no end lies on the limit.
    """
    if not limits.between or "position" not in limits.given:
        return
    inner = (plan.points + plan.origin)[..., 1:-1, :]
    lower, upper = (end.unsqueeze(-2) for end in range_of(limits, "position", plan.points))
    room = concrete(torch.minimum(upper - inner, inner - lower) - 1e-6 * (upper - lower))
    if room is not None and room.numel() and bool((room <= 0).any()):
        raise ArgumentError(
            "A point lies on the limit of the position, which is to be kept between samples.",
            given="a point between the ends, where a motion could only just touch its limit: that "
            "is not decided",
            expected="room of a millionth of the range",
            mend="Widen the range a little, or leave between=False.",
        )


def _slack(lower: Tensor, upper: Tensor) -> Tensor:
    """What rounding explains."""
    return 1e-12 * torch.maximum(lower.abs(), upper.abs())


def _check_range(what: str, kind: str, value: Tensor, limits: Limits, plan: Plan) -> None:
    lower, upper = (end.unsqueeze(-2) for end in range_of(limits, kind, plan.points))
    excess = concrete(torch.maximum(value - upper, lower - value) - _slack(lower, upper))
    if excess is not None and bool((excess > 0).any()):
        raise ArgumentError(
            f"The {what} exceeds its limit, and no duration would do.",
            given=f"up to {float(excess.max()):.6g} beyond the limit",
            mend=f"Raise the limit on {kind}, or lower the {what}.",
        )
