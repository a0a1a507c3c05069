"""Bring a least motion within its limits, or say which limit cannot be met and what would do."""

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.trajectory._knots import concrete
from pullback.trajectory.kernels.programs import Problem, keep_limits, solve_problems
from pullback.trajectory.kernels.programs._cubic import Forms, metric_product
from pullback.trajectory.kernels.programs._least import Basis
from pullback.trajectory.plans._limits import Limits, aim_of, limit_of
from pullback.trajectory.plans._plan import Plan, change_of

__all__ = ["combine", "least_forms", "row_mask"]

_POWERS = {"velocity": 1, "acceleration": 2, "jerk": 3}
# The least duration is looked for up to this multiple, to this relative precision.
_LONGEST = 1024.0
_PRECISION = 1e-3


def combine(basis: Basis, values: Tensor) -> Forms:
    """The motions that meet the conditions with values ``[..., rows, dof]``: ``[..., dof, n]``."""
    return Forms(*(values.mT @ form for form in basis.forms))


def least_forms(plan: Plan, limits: Limits | None) -> Forms:
    """The forms per step ``[..., dof, samples]`` of the least motion within limits.

    Raises:
        ArgumentError: no motion keeps the limits.
    """
    basis = plan.basis()
    forms = combine(basis, plan.values(plan.step))
    if limits is None or not limits.given:
        return forms
    _check_ends(plan, limits)
    problem = _problem(plan, forms, limits, plan.step)
    x, found = keep_limits(problem)
    known = concrete(found)
    if known is not None and not bool(known.all()):
        _refuse(plan, basis, limits, found)
    change = change_of(x)
    return Forms(*(a + b for a, b in zip(forms, change, strict=True)))


def limits_per_step(plan: Plan, limits: Limits, kind: str, step: Tensor) -> Tensor:
    """A limit in the unit of a step: ``[..., dof]``."""
    return aim_of(limits, kind, plan.points) * step.unsqueeze(-1) ** _POWERS[kind]


def row_mask(plan: Plan, kind: str) -> Tensor:
    """One for each row that is limited; zero where an end is given, which is checked by itself."""
    mask = torch.ones(
        plan.samples - (kind == "jerk"), dtype=torch.float64, device=plan.points.device
    )
    for end, given, _ in plan.ends:
        if given == kind:
            mask[0 if end == "start" else -1] = 0
    return mask


def _problem(plan: Plan, forms: Forms, limits: Limits, step: Tensor) -> Problem:
    levels, scales = [], []
    for kind in limits.given:
        scale = row_mask(plan, kind) / limits_per_step(plan, limits, kind, step).unsqueeze(-1)
        levels.append(getattr(forms, kind) * scale)
        scales.append(scale)
    level = _cat(levels)
    metric = metric_product(plan.order, forms.acceleration, forms.jerk)
    # The unit of the metric: its derivative moves the solution by the gap alone.
    middle = forms.position - forms.acceleration / 6
    energy = (metric[..., 1:-1] * middle).sum(-1)
    first = 2 * middle[..., 0] - middle[..., 1] + forms.acceleration[..., 0]
    last = 2 * middle[..., -1] - middle[..., -2] + forms.acceleration[..., -1]
    energy = (energy + metric[..., 0] * first + metric[..., -1] * last).detach()
    energy = torch.where(energy > 0, energy, torch.ones_like(energy))
    scale = _cat(scales).expand_as(level)
    batch = level.shape[:-1]
    # Joints share their conditions, so these have one of them.
    return Problem(
        level, scale, plan.conditions.unsqueeze(-3), energy.expand(batch), plan.order, limits.given
    )


def _cat(parts: list[Tensor]) -> Tensor:
    batch = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*batch, part.shape[-1]) for part in parts], dim=-1)


def _check_ends(plan: Plan, limits: Limits) -> None:
    """Refuse a given end that exceeds its limit: no duration would mend it."""
    for end, kind, value in plan.ends:
        if kind not in limits.given:
            continue
        limit = limit_of(limits, kind, plan.points).unsqueeze(-2)
        excess = concrete(value.abs() - limit * (1 + 1e-12))
        if excess is not None and bool((excess > 0).any()):
            raise ArgumentError(
                f"The {kind} of the {end} exceeds its limit, and no duration would do.",
                given=f"up to {float(excess.max()):.6g} beyond the limit",
                mend=f"Raise the limit on {kind}, or lower the {kind} of the {end}.",
            )


def _refuse(plan: Plan, basis: Basis, limits: Limits, found: Tensor) -> None:
    transformed = torch._C._are_functorch_transforms_active()
    known = concrete(found)
    assert known is not None
    failed = (~known).nonzero()[0].tolist()
    blame = "limits on " + " and ".join(limits.given)
    given = f"{int((~known).sum())} of {known.numel()} joints cannot keep their limits"
    expected = "a longer duration or wider limits"
    if not transformed:
        blame = _blame(plan, basis, limits, tuple(failed))
        place = f"joint {failed[-1]}" + (f" of trajectory {failed[:-1]}" if failed[:-1] else "")
        given = f"{given}; the first is {place}"
        expected = _least_duration(plan, basis, limits, found)
    raise ArgumentError(
        f"The {blame} cannot be met in the given time.",
        given=given,
        expected=expected,
        mend="Allow more time or wider limits; minimum_time finds a fast motion within limits.",
    )


def _blame(plan: Plan, basis: Basis, limits: Limits, failed: tuple[int, ...]) -> str:
    """The fewest kinds of limits that one joint cannot keep together."""
    guilty = list(limits.given)
    for kind in limits.given:
        others = [other for other in guilty if other != kind]
        if others and not _found_with(plan, basis, limits, others)[failed]:
            guilty = others
    return ("limit on " if len(guilty) == 1 else "limits on ") + " and ".join(guilty)


def _found_with(plan: Plan, basis: Basis, limits: Limits, kinds: list[str]) -> Tensor:
    with torch.no_grad():
        some = Limits(**{kind: getattr(limits, kind) for kind in kinds})
        forms = combine(basis, plan.values(plan.step))
        return solve_problems(_problem(plan, forms, some, plan.step))[1]


def _least_duration(plan: Plan, basis: Basis, limits: Limits, found: Tensor) -> str:
    """The least duration that would do, all times stretched alike."""
    span = plan.step.detach() * (plan.samples - 1)
    low = torch.ones_like(found, dtype=torch.float64)
    high = torch.where(found, low, 2 * low)
    while not bool((kept := _keeps(plan, basis, limits, high)).all()):
        if float(high.max()) >= _LONGEST:
            return f"wider limits: {_LONGEST:g} times the duration would not do either"
        low, high = torch.where(kept, low, high), torch.where(kept, high, 2 * high)
    while float((high / low).max()) > 1 + _PRECISION:
        middle = (low * high).sqrt()
        kept = _keeps(plan, basis, limits, middle)
        low, high = torch.where(kept, low, middle), torch.where(kept, middle, high)
    least = (high.amax(-1) * span).max()
    return f"a duration of {float(least):.4g} s or more, {float(high.max()):.4g} times as long"


def _keeps(plan: Plan, basis: Basis, limits: Limits, stretch: Tensor) -> Tensor:
    """Whether limits can be kept when each joint ``[..., dof]`` has that much more time."""
    with torch.no_grad():
        # One joint at a time: with dof as a batch, each joint has a step of its own.
        kept = []
        for joint in range(stretch.shape[-1]):
            step = plan.step * stretch[..., joint]
            forms = combine(basis, plan.values(step))
            problem = _problem(plan, forms, limits, step)
            single = _joint(problem, joint)
            kept.append(solve_problems(single)[1].squeeze(-1))
        return torch.stack(kept, dim=-1)


def _joint(problem: Problem, joint: int) -> Problem:
    chosen = slice(joint, joint + 1)
    return problem._replace(
        level=problem.level[..., chosen, :],
        scale=problem.scale[..., chosen, :],
        energy=problem.energy[..., chosen],
    )
