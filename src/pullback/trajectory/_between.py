"""How far a motion goes between its samples, where its jerk is constant."""

import torch
from torch import Tensor

from pullback.trajectory._limits import Limits, range_of
from pullback.trajectory._state import PARTS

__all__ = ["excess_between"]


def excess_between(parts: list[Tensor], dt: Tensor, limits: Limits) -> dict[str, Tensor]:
    """How far each limited kind is beyond its range at the most, ``[..., dof]``, or minus its room.

    With the state and the jerk of a sample, a kind is a polynomial of the time since then. It is
    largest or smallest at an end of the step, or where its derivative is zero.
    """
    states = [part.detach().to(torch.float64) for part in parts]
    # What follows the last sample is not known: a step of no length is the sample itself.
    step = torch.nn.functional.pad(dt.detach().to(torch.float64).expand(
        *dt.shape[:-1], states[0].shape[-2] - 1), (0, 1)).unsqueeze(-1)  # fmt: skip
    found = {}
    for kind in limits.given:
        order = PARTS.index(kind)
        lower, upper = (end.unsqueeze(-2) for end in range_of(limits, kind, parts[0]))
        beyond = [
            torch.maximum(value - upper, lower - value)
            for value in (_evaluate(states[order:], t) for t in _extremes(states[order:], step))
        ]
        found[kind] = torch.stack(beyond).amax(0).amax(-2)
    return found


def _evaluate(derivatives: list[Tensor], t: Tensor) -> Tensor:
    """A polynomial of ``t`` by its value and its derivatives at zero."""
    total = torch.zeros_like(derivatives[0])
    for power in range(len(derivatives) - 1, -1, -1):
        total = derivatives[power] + total * t / (power + 1)
    return total


def _extremes(derivatives: list[Tensor], step: Tensor) -> list[Tensor]:
    """Times within a step, among which a polynomial is largest and smallest."""
    times = [torch.zeros_like(derivatives[0]), step.expand_as(derivatives[0])]
    if len(derivatives) == 3:  # v + a t + j t^2 / 2: a + j t = 0
        times.append(-derivatives[1] / derivatives[2])
    if len(derivatives) == 4:  # p: v + a t + j t^2 / 2 = 0, so that no root is a difference
        _, v, a, j = derivatives
        q = -(a + torch.where(a < 0, -1.0, 1.0) * (a * a - 2 * v * j).clamp(min=0).sqrt())
        times += [q / j, 2 * v / q]
    return [t.nan_to_num(0.0, 0.0, 0.0).clamp(min=0).minimum(step) for t in times]
