"""The rows of a limited motion: what is kept within a range, as parts of that range."""

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.kernels._shapes import broadcast_shapes
from pullback.trajectory._knots import concrete
from pullback.trajectory.kernels.programs import Problem
from pullback.trajectory.kernels.programs._cubic import Forms, metric_product
from pullback.trajectory.plans._aim import aim_of
from pullback.trajectory.plans._limits import Limits, range_of
from pullback.trajectory.plans._plan import Plan

__all__ = [
    "POWERS",
    "check_given",
    "check_near",
    "limit_of",
    "near_ends",
    "near_kept",
    "problem_of",
    "row_kinds",
    "row_mask",
    "row_values",
]

POWERS = {"position": 0, "velocity": 1, "acceleration": 2, "jerk": 3}
# The control points of each step, beside its samples.
_BETWEEN = ("ahead", "behind")
# The velocity at ends that are free, beside the control points within the motion.
_AT_END = "end velocity"


def row_kinds(plan: Plan, limits: Limits) -> tuple[str, ...]:
    """The kinds of rows, in their order."""
    between = _BETWEEN if limits.between and limits.position is not None else ()
    given = [end for end, part, _ in plan.ends if part == "velocity"]
    at_end = (_AT_END,) if "velocity" in limits.given and len(given) < 2 else ()
    return limits.given + between + at_end


def limit_of(kind: str) -> str:
    """The limit that a kind of row keeps."""
    return "position" if kind in _BETWEEN else "velocity" if kind == _AT_END else kind


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
    own = {"position": position, "acceleration": acceleration, "jerk": jerk, _AT_END: velocity}
    return own[kind]


def row_mask(plan: Plan, kind: str) -> Tensor:
    """One for each row that is limited, ``[..., 1, rows]``.

    Zero where what is given decides a row, which is checked by itself, and for control points
    outside of the motion.
    """
    samples, given = plan.samples, {(end, part) for end, part, _ in plan.ends}
    extra = {"jerk": -1, "velocity": 1, "ahead": 1, "behind": 1}.get(kind, 0)
    mask = torch.ones(samples + extra, dtype=torch.float64, device=plan.points.device)
    for end, edge, inner in (("start", 0, 1), ("goal", -1, -2)):
        if kind == _AT_END:
            mask[1:-1] = 0
            mask[edge] = float((end, "velocity") not in given)
        elif kind in _BETWEEN:
            mask[edge] = 0
            # The nearer control point of the first step, or the one a third of it further on.
            near = (kind == "ahead") == (end == "start")
            parts = ("velocity",) if near else ("velocity", "acceleration")
            if {(end, part) for part in parts} <= given:
                mask[inner] = 0
        elif kind == "velocity":
            mask[edge] = 0
            if {(end, "velocity"), (end, "acceleration")} <= given:
                mask[inner] = 0
        elif (end, kind) in given:
            mask[edge] = 0
    if kind != "position":
        return mask
    steps = torch.arange(samples, dtype=torch.float64, device=plan.points.device)
    met = (plan.places.detach().unsqueeze(-1) - steps).abs().amin(-2) < 1e-6
    return (~met).to(torch.float64).unsqueeze(-2)


def problem_of(plan: Plan, forms: Forms, limits: Limits, step: Tensor) -> Problem:
    """The program that keeps the limits, for steps of so many seconds."""
    levels, scales, kinds = [], [], row_kinds(plan, limits)
    energy = _energy(plan.order, forms)
    for kind in kinds:
        lower, upper = aim_of(plan, limits, limit_of(kind))
        middle, half = (lower + upper) / 2, (upper - lower) / 2
        unit = step.unsqueeze(-1) ** POWERS[limit_of(kind)]
        scale = row_mask(plan, kind) / (half * unit).unsqueeze(-1)
        levels.append((row_values(kind, forms) - (middle * unit).unsqueeze(-1)) * scale)
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


def near_ends(plan: Plan, limits: Limits) -> list[tuple[str, str, dict[int, Tensor]]]:
    """The control points beside each end that what is given there decides.

    Returns:
        the end, the kind of limit, and the parts that multiply each power of the step, in the units
        of `row_values`: ``[..., 1, dof]``.
    """
    ends = {(end, kind): value for end, kind, value in plan.ends}
    places, found = plan.points + plan.origin, []
    for end, sign, index in (("start", 1, slice(1)), ("goal", -1, slice(-1, None))):
        velocity, acceleration = ends.get((end, "velocity")), ends.get((end, "acceleration"))
        if velocity is None:
            continue
        if "velocity" in limits.given and acceleration is not None:
            found.append((end, "velocity", {1: velocity, 2: sign * acceleration / 2}))
        if limits.between and "position" in limits.given:
            place, ahead = places[..., index, :], sign * velocity / 3
            found.append((end, "position", {0: place, 1: ahead}))
            if acceleration is not None:
                found.append((end, "position", {0: place, 1: 2 * ahead, 2: acceleration / 6}))
    return found


def check_given(plan: Plan, limits: Limits) -> None:
    """Refuse points and ends beyond their limits: no duration would mend them.

    Raises:
        ArgumentError: something that is given exceeds its limit.
    """
    for end, kind, value in plan.ends:
        if kind in limits.given:
            _check_range(f"{kind} of the {end}", kind, value, limits, plan)
    if "position" in limits.given:
        _check_range("position of a point", "position", plan.points + plan.origin, limits, plan)
        if limits.between:
            _check_room(plan, limits)


def check_near(plan: Plan, limits: Limits) -> None:
    """Refuse ends from which what is given leads beyond a limit within a step of the plan.

    Raises:
        ArgumentError: one does.
    """
    for end, kind, parts in near_ends(plan, limits):
        given = "acceleration" if kind == "velocity" else "velocity"
        excess = concrete(_excess(kind, _near(kind, parts, plan.step), limits, plan))
        if excess is not None and bool((excess > 0).any()):
            raise ArgumentError(
                f"The {kind} within a step of the {end}, whose {given} is given, exceeds its "
                "limit.",
                given=f"up to {float(excess.max()):.6g} beyond the limit",
                mend=f"Take more samples, raise the limit on {kind} or lower the {given}.",
            )


def near_kept(plan: Plan, limits: Limits, step: Tensor) -> Tensor:
    """Which trajectories `check_near` would let pass at steps of so many seconds: ``[...]``."""
    kept = torch.ones_like(step, dtype=torch.bool)
    for _, kind, parts in near_ends(plan, limits):
        kept = kept & (_excess(kind, _near(kind, parts, step), limits, plan) <= 0).all(-1).all(-1)
    return kept


def _near(kind: str, parts: dict[int, Tensor], step: Tensor) -> Tensor:
    h = step[..., None, None]
    terms = [part * h ** (power - POWERS[kind]) for power, part in parts.items()]
    return sum(terms[1:], terms[0])


def _excess(kind: str, value: Tensor, limits: Limits, plan: Plan) -> Tensor:
    """How far a value is beyond its range, and more than rounding would explain."""
    lower, upper = (end.unsqueeze(-2) for end in range_of(limits, kind, plan.points))
    slack = 1e-12 * torch.maximum(lower.abs(), upper.abs())
    return torch.maximum(value - upper, lower - value) - slack


def _check_range(what: str, kind: str, value: Tensor, limits: Limits, plan: Plan) -> None:
    excess = concrete(_excess(kind, value, limits, plan))
    if excess is not None and bool((excess > 0).any()):
        raise ArgumentError(
            f"The {what} exceeds its limit, and no duration would do.",
            given=f"up to {float(excess.max()):.6g} beyond the limit",
            mend=f"Raise the limit on {kind}, or lower the {what}.",
        )


def _check_room(plan: Plan, limits: Limits) -> None:
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
