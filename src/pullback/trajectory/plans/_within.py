"""Bring a least motion within its limits, or say which limit cannot be met and what would do."""

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.torch import are_functorch_transforms_active
from pullback.trajectory._checks import concrete
from pullback.trajectory._limits import KINDS, Limits
from pullback.trajectory.plans._plan import Plan
from pullback.trajectory.plans._rows import (
    check_decided,
    check_given,
    check_room,
    keep_limits,
    miss_limits,
)

__all__ = ["least_motion"]

# The least duration is looked for up to this multiple, to this relative precision.
_LONGEST = 1024.0
_PRECISION = 1e-3


def least_motion(plan: Plan, limits: Limits | None) -> Tensor:
    """The least motion within limits, in steps ``[..., dof, 4, samples]``."""
    x = plan.least(plan.step)
    if limits is None or not limits.given:
        return x
    check_given(plan, limits)
    check_room(plan, limits)
    change, found = keep_limits(plan, x, limits, plan.step)
    known = concrete(found)
    if known is not None and not bool(known.all()):
        check_decided(plan, limits, plan.step)
        _refuse(plan, limits, known)
    return x + change


def _refuse(plan: Plan, limits: Limits, known: Tensor) -> None:
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
    low, high = _stretched(plan, limits, failed, 1.0, precision=1e-3)
    if high < 1:
        raise ArgumentError(
            f"The {blame} leave so little room that the least motion within it was not found.",
            given=f"{place}, whose limits could be kept at {high:.7g} of their width",
            expected="limits that are a thousandth wider than they need to be",
            mend="Allow limits that are wider by 0.001, or fewer samples.",
        )
    if low <= 1:
        raise ArgumentError(
            f"Whether the {blame} can be met in the given time was not decided.",
            given=f"{place}, whose limits need to be between {low:.7g} and "
            f"{high:.7g} times as wide",
            mend=f"Allow limits that are wider by {high - 1:.2g}, or fewer samples.",
        )
    kinds = _blame(plan, limits, failed)
    raise ArgumentError(
        f"The {'limit' if len(kinds) == 1 else 'limits'} on {' and '.join(kinds)} "
        "cannot be met in the given time.",
        given=f"{given}; the first is {place}, whose limits would need to be "
        f"{low:.4g} times as wide",
        expected=_least_duration(plan, limits, known),
        mend=mend,
    )


def _stretched(
    plan: Plan, limits: Limits, place: tuple[int, ...], stretch: float,
    *, precision: float | None = None,
) -> tuple[float, float]:  # fmt: skip
    """By how much one joint would miss its limits with so much more time."""
    with torch.no_grad():
        low, high = miss_limits(plan, limits, plan.step * stretch, precision)
        return float(low[place]), float(high[place])


def _blame(plan: Plan, limits: Limits, place: tuple[int, ...]) -> list[str]:
    """The fewest kinds of limits that one joint cannot keep together."""
    guilty = list(limits.given)
    for kind in limits.given:
        others = [other for other in guilty if other != kind]
        ranges = {other: getattr(limits, other) for other in others}
        some = Limits(**ranges, between=limits.between)
        if others and _stretched(plan, some, place, 1.0)[0] > 1:
            guilty = others
    return [kind for kind in KINDS if kind in guilty]


def _least_duration(plan: Plan, limits: Limits, known: Tensor) -> str:
    """The least duration that would do, all times stretched alike."""
    span = (plan.step.detach() * (plan.samples - 1)).expand(known.shape[:-1])
    longest, stretch = 0.0, 1.0
    for failed in (~known).nonzero().tolist():
        place = tuple(failed)
        low, high = 1.0, 2.0
        while _stretched(plan, limits, place, high)[1] >= 1:
            low, high = high, 2 * high
            if low >= _LONGEST:
                return f"wider limits: {_LONGEST:g} times the duration would not do either"
        while high / low > 1 + _PRECISION:
            middle = (low * high) ** 0.5
            kept = _stretched(plan, limits, place, middle)[1] < 1
            low, high = (low, middle) if kept else (middle, high)
        if float(span[place[:-1]]) * high > longest:
            longest, stretch = float(span[place[:-1]]) * high, high
    return f"a duration of {longest:.4g} s or more, {stretch:.4g} times as long"
