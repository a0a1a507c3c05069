"""The rows of a limited motion: what is kept within a range, as parts of that range."""

import math
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.kernels._kernel import apply_rules
from pullback.internal.torch import innermost
from pullback.trajectory._checks import concrete, somewhere
from pullback.trajectory._limits import Limits, range_of
from pullback.trajectory.kernels.states._dispatch import ROWS, LeastMotion, bound_rows, find_rows
from pullback.trajectory.plans._plan import POWERS, Plan, inner_rows, row_forms

__all__ = [
    "LONGEST",
    "aim_of",
    "check_decided",
    "check_given",
    "check_room",
    "keep_limits",
    "miss_limits",
    "needs_of",
    "row_kinds",
    "shorten",
]

# The control points of each step, beside its samples.
_BETWEEN = ("ahead", "behind")

# The velocity at ends that are free, beside the control points within the motion.
_AT_END = "end velocity"
# Of the largest row of its kind, what rounding makes of one that is decided.
_ROUNDING = 1e-10
# Of half the width of a range, or so many times an end where that is less: zero stays zero.
_SMALL = 1e3
# Of that, for what rounding leaves of rows that are met: up to 3e-13 at 256 samples, 4e-12 at
# 1,024 and 1e-9 at 2,048.
_SPARES = ((512, 1e-12), (1024, 1e-11), (math.inf, 1e-8))
# Of an end, for what float32 rounds where motions are returned in it, and at most so much of half
# the width. Positions have no such part: they are as near to zero as their origin happens to be.
_SINGLE = 2e-7
_MOST = 1e-3
# The longest and, as its inverse, the shortest time that is tried, as a part of what is asked for.
LONGEST = 1024.0
# How much narrower limits are when needs are measured, so that none is kept.
_NARROWER = 4.0
# How far beside where limits are just kept they are tried, as a part of the precision, and at most.
_BESIDE, _FARTHEST, _TURNS = 0.2, 16, 64
# How needs fall with the duration, both as logarithms: at first, and at most and least.
_SLOPE, _SLOPES = -2.0, (-3.2, -0.3)


def row_kinds(plan: Plan, limits: Limits) -> tuple[str, ...]:
    """The kinds of rows, in their order."""
    between = _BETWEEN if limits.between and limits.position is not None else ()
    given = [end for end, part, _ in plan.ends if part == "velocity"]
    at_end = (_AT_END,) if "velocity" in limits.given and len(given) < 2 else ()
    return limits.given + between + at_end


def aim_of(
    plan: Plan, limits: Limits, kind: str, spare: float | None = None
) -> tuple[Tensor, Tensor]:
    """The ends to solve for, ``[..., dof]``; those of a position are relative to the first point.

    A range loses a part of half its width at each end, ``spare``; at one near zero, of that end.
    """
    lower, upper = range_of(limits, kind, plan.points)
    if kind == "position":
        origin = plan.origin.squeeze(-2)
        lower, upper = lower - origin, upper - origin
    if spare is None:
        spare = next(part for most, part in _SPARES if plan.samples <= most)
    half = (upper - lower) / 2
    own = 64 * torch.finfo(torch.float64).eps * torch.minimum(lower.abs(), upper.abs())
    below, above = (own + spare * torch.minimum(half, _SMALL * end.abs()) for end in (lower, upper))
    if kind != "position" and plan.dtype != torch.float64:
        below, above = (
            part + torch.minimum(_SINGLE * end.abs(), _MOST * half)
            for part, end in ((below, lower), (above, upper))
        )
    return lower + below, upper - above


class _Program(NamedTuple):
    """The rows of a motion: both ends of their ranges and their values, ``[..., kinds, samples]``.

    Ends are ``[..., kinds, 1]``. Levels are values as parts of the ranges; a row needs room on both
    sides of it, so that those that are decided are no part of the program, their scale zero: with
    one that is broken it has no solution.

    What solves it knows of no unit: its changes and scales are parts of ``unit [..., dof]``, how
    far the motion goes or has to be changed, so that radians or microns are all the same to it.
    """

    kinds: tuple[str, ...]
    lower: Tensor
    upper: Tensor
    value: Tensor
    level: Tensor
    scale: Tensor
    unit: Tensor
    alpha: Tensor
    place: Tensor


def _program(plan: Plan, x: Tensor, limits: Limits, step: Tensor) -> _Program:
    kinds = row_kinds(plan, limits)
    free = plan.free(kinds).unsqueeze(-3)
    ends = zip(*(aim_of(plan, limits, ROWS[kind].limit) for kind in kinds), strict=True)
    unit = _units(kinds, step)[..., None, :, None]
    lower, upper = (_stacked(end).mT.unsqueeze(-1) * unit for end in ends)
    value = row_forms(kinds, x.device) @ x
    half, middle = (upper - lower) / 2, (upper + lower) / 2
    scale = torch.where(free, 1 / half, 0.0)
    excess, width = _decided_excess(plan, x, limits, step)
    fixed = torch.where(excess > 0, 1 + 2 * excess / width, 0.0)
    level = torch.where(free, (value - middle) * scale, fixed)
    alpha, place = plan.conditions.alpha.unsqueeze(-3), plan.conditions.place.unsqueeze(-2)
    level, scale = level.detach(), scale.detach()
    size = _size_of(plan, kinds, x, (level.abs() - 1).clamp(min=0) * half)
    scale = scale * size[..., None, None]
    return _Program(kinds, lower, upper, value, level, scale, size, alpha, place)


def _size_of(plan: Plan, kinds: tuple[str, ...], x: Tensor, beyond: Tensor) -> Tensor:
    """How far a motion goes, or a change of all steps that brings it back: ``[..., dof]``."""
    powers = [POWERS[ROWS[kind].limit] for kind in kinds]
    reach = float(plan.samples) ** torch.tensor(powers, dtype=x.dtype, device=x.device)
    change = (beyond.amax(-1) * reach).amax(-1)
    size = torch.maximum(x[..., 0, :].abs().amax(-1), change).detach()
    return torch.where(size > 0, size, 1.0)


def keep_limits(plan: Plan, x: Tensor, limits: Limits, step: Tensor) -> tuple[Tensor, Tensor]:
    """The change ``[..., dof, 4, samples]`` that keeps limits, and for which joints there is one.

    While compiling nobody can look at the second value, so the operator itself raises.
    """
    program = _program(plan, x, limits, step)
    alpha, place, names = program.alpha, program.place, ",".join(program.kinds)
    unit = program.unit[..., None, None]
    energy = _energy(plan, program, x, step).detach() / program.unit.square()
    strict = torch.compiler.is_compiling()
    active, kink, found, inside = find_rows(
        program.level, program.scale, place, alpha.detach(), energy, plan.order, names, strict
    )
    # What is met exactly; where nothing is, no derivative is wanted.
    target = torch.where(active > 0, program.upper, program.lower) - program.value
    target = torch.where(active != 0, target / unit, 0.0).unsqueeze(-3)
    joints, (few, samples) = target.shape[:-3], (alpha.shape[-2], plan.samples)
    change = apply_rules(
        LeastMotion, alpha, x.new_zeros(*joints, 1, 4, samples),
        x.new_zeros(*joints, 1, few), target, place,
        program.scale.expand_as(program.level), active, kink, plan.order, names,
    )[0].squeeze(-3)  # fmt: skip
    away = torch.where(inside.isfinite(), inside - change, 0.0).detach()
    return unit * (change + away), found


def miss_limits(
    plan: Plan,
    limits: Limits,
    step: Tensor,
    precision: float | None = None,
    *,
    narrower: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """How many times as wide limits need to be, at least and at most, ``[..., dof]`` on the CPU.

    To a relative precision, or until it is known whether that is more or less than one, or than one
    over ``narrower``.
    """
    with torch.no_grad():
        program = _program(plan, plan.least(step), limits, step)
        level, scale = narrower * program.level, narrower * program.scale
        names = ",".join(program.kinds)
        low, high = bound_rows(level, scale, program.place, program.alpha, names, precision)
        return low / narrower, high / narrower


def needs_of(plan: Plan, limits: Limits, step: Tensor, precision: float) -> tuple[Tensor, Tensor]:
    """Logarithms of how many times as wide limits need to be, at least and at most."""
    tiny = torch.finfo(step.dtype).tiny
    bounds = miss_limits(plan, limits, step, precision, narrower=_NARROWER)
    low, high = (bound.clamp(min=tiny).log().to(step.device) for bound in bounds)
    return low, high


def shorten(
    plan: Plan, limits: Limits, low: Tensor, high: Tensor, precision: float
) -> tuple[Tensor, Tensor]:
    """Logarithms of factors of time: one proven too short, and one with which limits are kept.

    By secants through the logarithms of how wide limits need to be, to a little beside their
    zeros, so that both sides are known soon; within known ends every third time half-way. Where the
    linear program proves neither, it is asked farther and farther below what is known to do.
    """
    longest = math.log(LONGEST)
    beside = torch.full_like(low, _BESIDE * precision)
    place = torch.where(high.isinf(), 0.0, (low + high) / 2)
    move, slope, last = torch.zeros_like(place), torch.full_like(place, _SLOPE), place
    for turn in range(_TURNS):
        bounds = needs_of(plan, limits, plan.step * place.exp(), precision / 10)
        lower, need = (bound.amax(-1) for bound in bounds)
        fits, unsure = need < 0, (need >= 0) & (lower <= 0)
        high = torch.where(fits, torch.minimum(high, place), high)
        low = torch.where(lower > 0, torch.maximum(low, place), low)
        beside = torch.where(unsure, 2 * beside, beside)
        going = (low < longest) & (high > -longest) & (beside < _FARTHEST * precision)
        if not bool((going & (high - low > precision)).any()):
            break
        slope = torch.where(move != 0, (need - last) / move, slope)
        step = -need / slope.clamp(*_SLOPES)
        # Where longer takes nothing off a need, longer steps do.
        size = torch.where(
            slope > _SLOPES[1], torch.maximum(step.abs(), 2 * move.abs()), step.abs()
        )
        below = fits | (unsure & high.isfinite())
        aim = place + size * step.sign() + torch.where(below, -beside, beside)
        aim = (low + high) / 2 if turn % 3 == 2 else aim
        aim = torch.where((aim > low) & (aim < high), aim, (low + high) / 2)
        aim = torch.where(aim.isfinite(), aim, place + size * step.sign()).clamp(-longest, longest)
        place, move, last = aim, aim - place, need
    return low, high


def _energy(plan: Plan, program: _Program, x: Tensor, step: Tensor) -> Tensor:
    """What the motion costs, or a change that brings it back into its limits, the larger one.

    Where a polynomial of low degree meets all conditions the first is that of rounding alone, which
    is no unit: there it is that of a change as large as the motion.
    """
    order, steps, size = plan.order, float(plan.samples), x[..., 0, :].abs().amax(-1)
    part = x[..., order, :]
    if order == 2:
        energy = (part[..., :-1] ** 2 + part[..., :-1] * part[..., 1:] + part[..., 1:] ** 2) / 3
    else:
        energy = part[..., :-1] ** 2
    energy = energy.sum(-1)
    rounding = steps * (64 * torch.finfo(size.dtype).eps * size) ** 2
    covered = _smooth_energy(order, steps, torch.where(size > 0, size, torch.ones_like(size)))
    energy = torch.where(energy > rounding, energy, covered)
    beyond = (program.level.abs() - 1).clamp(min=0).amax(-1, keepdim=True)
    beyond = (beyond * (program.upper - program.lower) / 2).squeeze(-1)
    for number, kind in enumerate(program.kinds):
        lower = max(order - POWERS[ROWS[kind].limit], 0)
        energy = torch.maximum(energy, _smooth_energy(lower, steps, beyond[..., number]))
    return energy


def _smooth_energy(order: int, steps: float, change: Tensor) -> Tensor:
    """Of a change that takes all steps: each has ``1 / steps ** order`` of it as derivative."""
    return change.square() * steps ** (1 - 2 * order if order else 0)


def _decided_excess(plan: Plan, x: Tensor, limits: Limits, step: Tensor) -> tuple[Tensor, Tensor]:
    """How far decided rows are beyond their ranges, in seconds, and how wide these are.

    ``[..., dof, kinds, samples]``, and one sample. What rounding explains is no excess.
    """
    kinds, ends = row_kinds(plan, limits), []
    for kind in (ROWS[kind].limit for kind in kinds):
        lower, upper = range_of(limits, kind, plan.points)
        slack = _slack(lower, upper)
        origin = plan.origin.squeeze(-2) if kind == "position" else 0.0
        ends.append((lower - slack - origin, upper + slack - origin))
    lower, upper = (_stacked(end).mT.unsqueeze(-1) for end in zip(*ends, strict=True))
    value = row_forms(kinds, x.device) @ x / _units(kinds, step)[..., None, :, None]
    rounding = _ROUNDING * value.abs().amax(-1, keepdim=True)
    beyond = torch.maximum(value - upper, lower - value) - rounding
    decided = inner_rows(kinds, plan.samples, x.device) & ~plan.free(kinds)
    return torch.where(decided.unsqueeze(-3), beyond, -torch.inf), upper - lower


def _stacked(parts: Iterable[Tensor]) -> Tensor:
    """Of each kind ``[..., dof]``, together ``[..., kinds, dof]``."""
    return torch.stack(torch.broadcast_tensors(*parts), dim=-2)


def _units(kinds: tuple[str, ...], step: Tensor) -> Tensor:
    """What a kind is in steps, of what it is in seconds: ``[..., kinds]``."""
    powers = torch.tensor([POWERS[ROWS[kind].limit] for kind in kinds], device=step.device)
    return step.unsqueeze(-1) ** powers


def check_given(plan: Plan, limits: Limits) -> None:
    """Refuse points and ends beyond their limits: no duration would mend them."""
    for end, kind, value in plan.ends:
        if kind in limits.given:
            _check_range(f"{kind} of the {end}", kind, value, limits, plan)
    if "position" in limits.given:
        _check_range("position of a point", "position", plan.points + plan.origin, limits, plan)


def check_decided(plan: Plan, x: Tensor, limits: Limits, step: Tensor) -> None:
    """Refuse what is given where it leads beyond a limit, whatever the motion does elsewhere."""
    excess = concrete(_decided_excess(plan, x, limits, step)[0])
    if excess is None or not bool((excess > 0).any()):
        return
    by_kind = excess.flatten(0, -3).amax(0)
    number = int((by_kind.amax(-1) > 0).nonzero()[0])
    kind = row_kinds(plan, limits)[number]
    most, index = by_kind[number].max(-1)
    where = int(index) + ROWS[kind].middle
    end, apart = min(("start", where), ("goal", plan.samples - 1 - where), key=itemgetter(1))
    limit = ROWS[kind].limit
    raise ArgumentError(
        f"The {limit} within {_steps(apart)} of the {end}, which is decided by what "
        "is given there, exceeds its limit.",
        given=f"{float(most):.6g} beyond the limit",
        mend=f"Take more samples, raise the limit on {limit} or give less.",
    )


def _steps(count: float) -> str:
    return "a step" if count <= 1 else f"{math.ceil(count)} steps"


def check_room(plan: Plan, limits: Limits) -> None:
    """Refuse points where a motion could only just touch its limit between samples."""
    if not limits.between or "position" not in limits.given:
        return
    inner = (plan.points + plan.origin)[..., 1:-1, :]
    lower, upper = (end.unsqueeze(-2) for end in range_of(limits, "position", plan.points))
    if somewhere(torch.minimum(upper - inner, inner - lower) <= 1e-6 * (upper - lower)):
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
    excess = torch.maximum(value - upper, lower - value) - _slack(lower, upper)
    if somewhere(excess > 0):
        raise ArgumentError(
            f"The {what} exceeds its limit, and no duration would do.",
            given=f"up to {float(innermost(excess).detach().max()):.6g} beyond the limit",
            mend=f"Raise the limit on {kind}, or lower the {what}.",
        )
