"""What is asked of a least motion, checked and written as linear conditions, and what that decides.

Rows are decided that are sums of conditions, whatever else a motion does. With position, velocity
and acceleration at an end these are its first three, with the jerk its fourth, and further ones
where points lie near.

Motions of stepwise constant jerk are cubic splines. Four coefficients ``c[k] .. c[k + 3]`` of
theirs are the position, velocity and acceleration at sample ``k`` and the jerk after it, in steps:

    position      (c[k] + 4 c[k+1] + c[k+2]) / 6
    velocity      (c[k+2] - c[k]) / 2
    acceleration  c[k] - 2 c[k+1] + c[k+2]
    jerk          -c[k] + 3 c[k+1] - 3 c[k+2] + c[k+3]

In these a row and a condition have few entries, so that what is decided is found from a matrix of
the size of the conditions.

Source: de Boor, A Practical Guide to Splines, chapter X.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.kernels._kernel import apply_rules, broadcast_shapes
from pullback.trajectory._checks import check_points, concrete, fits_within, plain, wide_dtype
from pullback.trajectory._motion import Motion
from pullback.trajectory._seconds import normalise_duration, normalise_times
from pullback.trajectory._state import PARTS, State, check_state, state_part
from pullback.trajectory.kernels.states._dispatch import ROWS, Conditions, LeastMotion

__all__ = [
    "POWERS",
    "SAMPLES",
    "Plan",
    "inner_rows",
    "make_plan",
    "row_forms",
    "to_motion",
]

_SPLINE = (
    (1 / 6, 4 / 6, 1 / 6, 0.0),
    (-1 / 2, 0.0, 1 / 2, 0.0),
    (1.0, -2.0, 1.0, 0.0),
    (-1.0, 3.0, -3.0, 1.0),
)
# Of the square of a row, what is not a sum of conditions: a point is met on a sample if it is
# a millionth of a step away.
_APART = 1e-12


def inner_rows(kinds: tuple[str, ...], samples: int, device: torch.device) -> Tensor:
    """Which rows ``[kinds, samples]`` are of the motion: no control points outside of it."""
    inner = torch.zeros(len(kinds), samples, dtype=torch.bool, device=device)
    for number, kind in enumerate(kinds):
        inner[number, ROWS[kind].samples] = True
    return inner


def row_forms(kinds: tuple[str, ...], device: torch.device) -> Tensor:
    """What rows are of a state and a jerk: ``[kinds, 4]``."""
    forms = [ROWS[kind].form for kind in kinds]
    return torch.tensor(forms, dtype=torch.float64, device=device)


def free_rows(conditions: Conditions, samples: int, kinds: tuple[str, ...]) -> Tensor:
    """Which rows ``[..., kinds, samples]`` of a motion are no sums of its conditions.

    With ``A' = Q R`` for conditions ``A``, a row ``r`` is one where ``|r|^2 = |Q' r|^2``. There are
    no derivatives.
    """
    few, device = conditions.alpha.shape[-2], conditions.alpha.device
    spline = torch.tensor(_SPLINE, dtype=torch.float64, device=device)
    batch = broadcast_shapes(conditions.alpha.shape[:-2], conditions.place.shape[:-1])
    parts = (conditions.alpha.detach() @ spline).expand(*batch, few, 4)
    places = conditions.place.unsqueeze(-1) + torch.arange(4, device=device)
    matrix = torch.zeros(*batch, few, samples + 3, dtype=torch.float64, device=device)
    matrix = matrix.scatter(-1, places.expand(*batch, few, 4), parts)
    forms = row_forms(kinds, device) @ spline
    basis = torch.linalg.qr(matrix.mT).Q.unfold(-2, 4, 1)
    reach = (basis @ forms.mT).square().sum(-2).mT  # [..., kinds, samples]
    apart = (1 - reach / forms.square().sum(-1, keepdim=True)).abs()
    return inner_rows(kinds, samples, device) & (apart >= _APART)


POWERS = {name: power for power, name in enumerate(PARTS)}
SAMPLES = 256
_MOST_SAMPLES = 2048
# Steps from an end at which all is given, which decides the position a step away: at 1.01 what
# comes between has to be so large that it is met to a millionth alone.
_BESIDE = 1.1
# More conditions for each joint than this: a motion for each of them would be found to be added up.
_MANY = 16


@dataclass(frozen=True, eq=False)
class Plan:
    """What is asked of a least motion, checked, in float64 and per step."""

    points: Tensor  # [..., count, dof], relative to the first
    origin: Tensor  # [..., 1, dof], the first point
    step: Tensor  # [...] seconds between samples
    conditions: Conditions  # positions, then derivatives at the ends
    places: Tensor  # [..., count], when the points are met, in steps
    begin: Tensor | None  # [...] seconds, the time of the first point, where times were given
    # "start" or "goal", kind and value [..., 1, dof] in seconds, in the order of the rows.
    ends: tuple[tuple[str, str, Tensor], ...]
    order: int
    samples: int
    dtype: torch.dtype
    known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def free(self, kinds: tuple[str, ...]) -> Tensor:
        """The rows of these kinds that the conditions do not decide, found once."""
        if kinds not in self.known:
            self.known[kinds] = free_rows(self.conditions, self.samples, kinds)
        return self.known[kinds]

    def least(self, step: Tensor) -> Tensor:
        """The least motion that meets its conditions, in steps: ``[..., dof, 4, samples]``.

        A sum of those that meet each condition with 1 and the others with 0, which are found once;
        where conditions are many and their times serve a few joints alone, found for these.
        """
        values = self.values(step)
        few, dof = values.shape[-2:]
        alone = fits_within(values.shape[:-2], self.conditions.alpha.shape[:-2])
        if alone and 0 < _MANY * dof < few:
            return self._solve(values.mT)
        if "basis" not in self.known:
            unit = torch.eye(few, dtype=values.dtype, device=step.device)
            self.known["basis"] = self._solve(unit)
        basis: Tensor = self.known["basis"]
        return (values.mT @ basis.flatten(-2)).unflatten(-1, basis.shape[-2:])

    def _solve(self, values: Tensor) -> Tensor:
        """The least motions of values ``[..., columns, conditions]``, in steps.

        ``[..., columns, 4, samples]``: position, velocity, acceleration and jerk.
        """
        alpha, place = self.conditions
        columns, samples = values.shape[-2], self.samples
        options = {"dtype": alpha.dtype, "device": alpha.device}
        # No two are one tensor: a compiler takes none in two places.
        scale, active = torch.zeros(0, samples, **options), torch.zeros(0, samples, **options)
        return apply_rules(
            LeastMotion, alpha, torch.zeros(columns, 4, samples, **options), values,
            torch.zeros(columns, 0, samples, **options), place, scale, active,
            torch.zeros((), dtype=torch.bool, device=alpha.device), self.order, "",
        )[0]  # fmt: skip

    def values(self, step: Tensor) -> Tensor:
        """What the conditions are to be, for a step in seconds: ``[..., rows, dof]``."""
        ends = [value * step[..., None, None] ** POWERS[kind] for _, kind, value in self.ends]
        parts = [self.points, *ends]
        batch = broadcast_shapes(*(part.shape[:-2] for part in parts))
        dof = self.points.shape[-1]
        return torch.cat([part.expand(*batch, part.shape[-2], dof) for part in parts], dim=-2)


def make_plan(
    points: Tensor,
    times: Tensor | Sequence[float] | float | None,
    *,
    duration: Tensor | float | None,
    start: State,
    goal: State,
    samples: int,
    order: int,
) -> Plan:
    """Check the arguments of a least motion."""
    times, samples = plain(times), plain(samples)
    check_points(points, what="points", least=2)
    count = points.shape[-2]
    ends = _ends(points, start, goal)
    # Motions that cost nothing are polynomials below the order; a jerk tells none from another.
    telling = [kind for _, kind, _ in ends if POWERS[kind] < order]
    if count + len(telling) < order:
        raise ArgumentError(
            "There is too little to determine the motion.",
            given=f"{count} points and {len(telling)} derivatives below the order of the cost",
            expected=f"{order} conditions or more",
            mend="Give a velocity or an acceleration in start or goal.",
        )
    knots = _times(points, times, duration)
    _check_samples(samples, count + len(ends))
    begin = knots[..., 0] if _listed(times) else None
    step = (knots[..., -1] - knots[..., 0]) / (samples - 1)
    places = (knots - knots[..., :1]) / step.unsqueeze(-1)
    _check_places(places, samples, [end for end, _, _ in ends])
    conditions = _conditions(places, samples, [(end, kind) for end, kind, _ in ends])
    exact = points.to(torch.float64)
    # Relative to the first point, so that a far origin costs no digits.
    origin = exact[..., :1, :]
    return Plan(
        exact - origin, origin, step, conditions, places, begin, ends, order, samples, points.dtype
    )


def _conditions(places: Tensor, samples: int, ends: list[tuple[str, str]]) -> Conditions:
    """Positions at places counted in steps, and derivatives at ends."""
    place = places.detach().floor().clamp(0, samples - 2)
    s = places - place
    alpha = torch.stack([torch.ones_like(s), s, s**2 / 2, s**3 / 6], dim=-1)
    rows, at = [alpha], [place.to(torch.int64)]
    for end, kind in ends:
        last = samples - 2 if kind == "jerk" else samples - 1
        row = torch.eye(4, dtype=alpha.dtype, device=alpha.device)[POWERS[kind]]
        rows.append(row.expand(*alpha.shape[:-2], 1, 4))
        at.append(torch.full_like(at[0][..., :1], last if end == "goal" else 0))
    return Conditions(torch.cat(rows, dim=-2), torch.cat(at, dim=-1))


def to_motion(plan: Plan, x: Tensor, step: Tensor) -> Motion:
    """A motion from what it is in steps, ``[..., dof, 4, samples]``.

    The jerk of a sample is that of the step after it; the last sample repeats the last step's.
    """
    jerk = torch.cat([x[..., 3, :-1], x[..., 3, -2:-1]], dim=-1)
    unit = step[..., None, None]
    parts = (
        plan.origin + x[..., 0, :].mT,
        x[..., 1, :].mT / unit,
        x[..., 2, :].mT / unit**2,
        jerk.mT / unit**3,
    )
    batch = broadcast_shapes(*(part.shape for part in parts))
    dt = step if not step.dim() else step.unsqueeze(-1).expand(*step.shape, plan.samples - 1)
    seconds = wide_dtype(plan.dtype)
    return Motion(
        *(part.expand(batch).to(plan.dtype) for part in parts),
        dt=dt.to(seconds),
        start_time=plan.begin,
    )


def _ends(points: Tensor, start: State, goal: State) -> tuple[tuple[str, str, Tensor], ...]:
    found = []
    for name, state in (("start", start), ("goal", goal)):
        check_state(name, state, points)
        if "position" in state.given:
            raise ArgumentError(
                f"The position of the {name} is given twice.",
                given=f"{name}.position and the {'first' if name == 'start' else 'last'} point",
                mend=f"Leave it out: State(velocity=..., acceleration=...) as the {name}.",
            )
        found += [(name, part, state_part(state, part, points)) for part in state.given]
    return tuple(found)


def _times(points: Tensor, times: object, duration: Tensor | float | None) -> Tensor:
    """The times of the points in float64; a duration spaces them evenly."""
    if (times is None) == (duration is None):
        raise ArgumentError(
            "Either the times of the points or the duration must be given.",
            given="both" if times is not None else "neither",
            mend="Pass times=[...] with one time for each point, or duration=seconds.",
        )
    if _listed(times):
        return normalise_times(times, points).to(torch.float64)
    chosen = times if duration is None else duration
    seconds = normalise_duration(chosen, points).to(torch.float64)
    count = points.shape[-2]
    even = torch.arange(count, dtype=torch.float64, device=points.device) / (count - 1)
    return seconds.unsqueeze(-1) * even


def _listed(times: object) -> bool:
    """Whether there is a time for each point, and not only a duration."""
    single = isinstance(times, (int, float)) or (isinstance(times, Tensor) and times.dim() == 0)
    return times is not None and not single


def _check_samples(samples: int, conditions: int) -> None:
    least = max(4, conditions)
    whole = isinstance(samples, int) and not isinstance(samples, bool)
    if not whole or not least <= samples <= _MOST_SAMPLES:
        raise ArgumentError(
            "The number of samples is out of range.",
            given=repr(samples),
            expected=f"a whole number from {least} ({conditions} conditions) to {_MOST_SAMPLES}",
            mend="For more samples, resample the result.",
        )


def _check_places(places: Tensor, samples: int, ends: list[str]) -> None:
    gaps = concrete(places.diff(dim=-1))
    if gaps is None or not gaps.numel():
        return
    least = torch.full_like(gaps, 1 - 1e-9)
    for end, index in (("start", 0), ("goal", -1)):
        if ends.count(end) == len(POWERS) - 1:
            least[..., index] = _BESIDE
    if bool((gaps >= least).all()):
        return
    if bool((gaps >= 1 - 1e-9).all()):
        what = "A point lies too near an end whose velocity, acceleration and jerk are given."
    else:
        what = "Two points lie within one step of each other."
    needed = math.ceil((samples - 1) * float((least / gaps.clamp(min=1e-9)).max())) + 1
    raise ArgumentError(
        what,
        given=f"{samples} samples, points {gaps.min():.3g} steps apart",
        expected=f"at least one step between two points, and {_BESIDE} beside such an end",
        mend=f"Pass samples={needed} or more, or space the times.",
    )
