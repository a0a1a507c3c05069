"""Segments of a motion that hurries: which of them to shorten, and whether limits can be kept."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.trajectory._limits import Limits, range_of
from pullback.trajectory._state import State
from pullback.trajectory.plans._plan import Plan, make_plan
from pullback.trajectory.plans._rows import miss_limits
from pullback.trajectory.plans._within import combine

__all__ = ["Hurry", "moved_apart"]

# Neighbouring points keep this many samples apart.
_APART = 1.5
# How often other proportions are tried, so many at once.
_ROUNDS, _WAYS = 96, 4
# How much shorter what is tried is than the best.
_GAINS = (0.04, 0.01, 0.002, 0.0003)
# How far proportions are changed at first, and at least.
_STRIDE, _LEAST_STRIDE = 0.05, 0.001
# A segment becomes no shorter at once.
_SHRINK = 0.2


def moved_apart(share: Tensor, samples: int) -> Tensor:
    """Parts of one, of which only those are changed much that are too close for the samples."""
    least = _APART / (samples - 1)
    width = (share - least).clamp(min=0)
    return least + (1 - least * width.shape[-1]) * width / width.sum(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class Hurry:
    """What a motion is asked for, whatever time its segments take: ``widths [..., count - 1]``."""

    points: Tensor
    limits: Limits
    start: State
    goal: State
    samples: int

    def plan(self, widths: Tensor) -> Plan:
        """The plan of a motion whose segments take so long."""
        times = torch.nn.functional.pad(widths.cumsum(-1), (1, 0))
        return make_plan(
            self.points, times,
            duration=None, start=self.start, goal=self.goal, samples=self.samples, order=3,
        )  # fmt: skip

    def kept(self, plan: Plan, step: Tensor) -> Tensor:
        """Whether limits are kept with so many seconds between samples, as far as is found."""
        if not bool(self._is_fast_enough(plan, step).any()):
            return torch.zeros_like(step, dtype=torch.bool)
        return (self._missed(plan, step)[1] < 1).all(-1).to(step.device)

    def surely_broken(self, plan: Plan, step: Tensor) -> Tensor:
        """Whether no motion at all keeps the limits, proven by the bound of a linear program."""
        broken = (self._missed(plan, step)[0] > 1).any(-1).to(step.device)
        return broken | ~self._is_fast_enough(plan, step)

    def improve(self, widths: Tensor) -> Tensor:
        """Widths near these, which are kept, whose sum is shorter: by chance, always the same.

        Where several joints press no slope is theirs all, so none is followed: steps that find
        something get longer and others shorter.
        """
        stride = torch.full_like(widths[..., :1], _STRIDE)
        gains = torch.tensor(_GAINS, dtype=widths.dtype, device=widths.device)
        gains = gains.reshape(-1, *(1,) * (widths.dim() + 1))
        draw = torch.Generator("cpu").manual_seed(0)  # the same numbers whatever the device
        shape = (_WAYS, *(1,) * (widths.dim() - 1), widths.shape[-1])
        for _ in range(_ROUNDS if widths.shape[-1] > 1 else 0):
            way = torch.randn(shape, generator=draw, dtype=widths.dtype, device="cpu")
            tried = widths * (1 + stride * way.to(widths.device)).clamp(min=_SHRINK)
            share = moved_apart(tried / tried.sum(-1, keepdim=True), self.samples)
            shorter = share * widths.sum(-1, keepdim=True) * (1 - gains)
            plan = self.plan(shorter)
            fits = self.kept(plan, plan.step).unsqueeze(-1)
            best = torch.where(fits, gains, 0.0).flatten(0, 1).argmax(0, keepdim=True)
            found = shorter.flatten(0, 1).gather(0, best.expand(1, *widths.shape))[0]
            fits = fits.flatten(0, 1).any(0)
            widths = torch.where(fits, found, widths)
            stride = torch.where(fits, 1.3 * stride, (0.9 * stride).clamp(min=_LEAST_STRIDE))
        return widths

    def _missed(self, plan: Plan, step: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            x = combine(plan.basis(), plan.values(step))
            return miss_limits(plan, x, self.limits, step)

    def _is_fast_enough(self, plan: Plan, step: Tensor) -> Tensor:
        """Whether mean speeds are within the limit, without which nothing is: quick to see."""
        if "velocity" not in self.limits.given:
            return torch.ones_like(step, dtype=torch.bool)
        lower, upper = (end.unsqueeze(-2) for end in range_of(self.limits, "velocity", plan.points))
        seconds = (plan.places.diff(dim=-1) * step.unsqueeze(-1)).unsqueeze(-1)
        mean = plan.points.diff(dim=-2) / seconds
        return ((mean <= upper) & (mean >= lower)).all(-1).all(-1)
