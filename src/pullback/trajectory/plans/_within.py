"""Bring a least motion within its limits, or say which limit cannot be met and what would do."""

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.torch import are_functorch_transforms_active
from pullback.trajectory._knots import concrete
from pullback.trajectory.kernels.programs import Bounds, Problem, bound_problems, keep_limits
from pullback.trajectory.kernels.programs._cubic import Forms
from pullback.trajectory.kernels.programs._least import Basis
from pullback.trajectory.plans._limits import KINDS, Limits
from pullback.trajectory.plans._plan import Plan, change_of
from pullback.trajectory.plans._rows import (
    check_decided,
    check_given,
    check_room,
    problem_of,
)

__all__ = ["combine", "least_forms"]

# The least duration is looked for up to this multiple, to this relative precision.
_LONGEST = 1024.0
_PRECISION = 1e-3


def combine(basis: Basis, values: Tensor) -> Forms:
    """The motions that meet the conditions with values ``[..., rows, dof]``: ``[..., dof, n]``."""
    return Forms(*(values.mT @ form for form in basis.forms))


def least_forms(plan: Plan, limits: Limits | None) -> Forms:
    """The forms per step ``[..., dof, samples]`` of the least motion within limits.

    Raises:
        ArgumentError: no motion keeps the limits, or that could not be decided.
    """
    basis = plan.basis()
    forms = combine(basis, plan.values(plan.step))
    if limits is None or not limits.given:
        return forms
    check_given(plan, limits)
    check_room(plan, limits)
    problem = problem_of(plan, forms, limits, plan.step)
    x, found = keep_limits(problem)
    known = concrete(found)
    if known is not None and not bool(known.all()):
        check_decided(plan, limits, plan.step)
        _refuse(plan, basis, limits, problem, known)
    change = change_of(x)
    return Forms(*(a + b for a, b in zip(forms, change, strict=True)))


def _refuse(plan: Plan, basis: Basis, limits: Limits, problem: Problem, known: Tensor) -> None:
    blame = "limits on " + " and ".join(limits.given)
    given = f"{int((~known).sum())} of {known.numel()} joints cannot keep their limits"
    mend = "Allow more time or wider limits; minimum_time finds a fast motion within limits."
    if are_functorch_transforms_active():
        expected = "a longer duration or wider limits"
        raise ArgumentError(
            f"The {blame} cannot be met in the given time.",
            given=given,
            expected=expected,
            mend=mend,
        )
    failed = tuple((~known).nonzero()[0].tolist())
    place = f"joint {failed[-1]}" + (f" of trajectory {list(failed[:-1])}" if failed[:-1] else "")
    bounds = bound_problems(problem.at(failed), 1e-3)
    if float(bounds.high) < 1:
        raise ArgumentError(
            f"The {blame} leave so little room that the least motion within it was not found.",
            given=f"{place}, whose limits could be kept at {float(bounds.high):.7g} of their width",
            expected="limits that are a thousandth wider than they need to be",
            mend="Allow limits that are wider by 0.001, or fewer samples.",
        )
    if float(bounds.low) <= 1:
        raise ArgumentError(
            f"Whether the {blame} can be met in the given time was not decided.",
            given=f"{place}, whose limits need to be between {float(bounds.low):.7g} and "
            f"{float(bounds.high):.7g} times as wide",
            mend=f"Allow limits that are wider by {float(bounds.high) - 1:.2g}, or fewer samples.",
        )
    kinds = _blame(plan, basis, limits, failed)
    raise ArgumentError(
        f"The {'limit' if len(kinds) == 1 else 'limits'} on {' and '.join(kinds)} "
        "cannot be met in the given time.",
        given=f"{given}; the first is {place}, whose limits would need to be "
        f"{float(bounds.low):.4g} times as wide",
        expected=_least_duration(plan, basis, limits, known),
        mend=mend,
    )


def _stretched(
    plan: Plan, basis: Basis, limits: Limits, place: tuple[int, ...], stretch: float
) -> Bounds:
    """By how much one joint would miss its limits with so much more time."""
    with torch.no_grad():
        step = plan.step * stretch
        problem = problem_of(plan, combine(basis, plan.values(step)), limits, step)
        return bound_problems(problem.at(place), 0.5)


def _blame(plan: Plan, basis: Basis, limits: Limits, place: tuple[int, ...]) -> list[str]:
    """The fewest kinds of limits that one joint cannot keep together."""
    guilty = list(limits.given)
    for kind in limits.given:
        others = [other for other in guilty if other != kind]
        ranges = {other: getattr(limits, other) for other in others}
        some = Limits(**ranges, between=limits.between)
        if others and float(_stretched(plan, basis, some, place, 1.0).low) > 1:
            guilty = others
    return [kind for kind in KINDS if kind in guilty]


def _least_duration(plan: Plan, basis: Basis, limits: Limits, known: Tensor) -> str:
    """The least duration that would do, all times stretched alike."""
    span = (plan.step.detach() * (plan.samples - 1)).expand(known.shape[:-1])
    longest, stretch = 0.0, 1.0
    for failed in (~known).nonzero().tolist():
        place = tuple(failed)
        low, high = 1.0, 2.0
        while float(_stretched(plan, basis, limits, place, high).high) >= 1:
            low, high = high, 2 * high
            if low >= _LONGEST:
                return f"wider limits: {_LONGEST:g} times the duration would not do either"
        while high / low > 1 + _PRECISION:
            middle = (low * high) ** 0.5
            kept = float(_stretched(plan, basis, limits, place, middle).high) < 1
            low, high = (low, middle) if kept else (middle, high)
        if float(span[place[:-1]]) * high > longest:
            longest, stretch = float(span[place[:-1]]) * high, high
    return f"a duration of {longest:.4g} s or more, {stretch:.4g} times as long"
