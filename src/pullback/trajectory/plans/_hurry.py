"""Segments of a motion that hurries: which of them to shorten, and whether limits can be kept.

Let ``T(w)`` be the least duration of a motion whose segments take parts ``w`` of it. At the least
``T`` it is the same for each segment to be longer by a second: the gradient of what limits the
motion is alike in all of them. Near ``T(w)`` the cost ``J`` of the least motion within limits grows
without bound in relation to its own size, and for each joint ``-d log J / dw`` points along that
gradient, the more the nearer the joint is to what it cannot do; so joints count by the fourth power
of ``-d log J / d log T``, which is 5 where nothing limits them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.trajectory._limits import Limits, range_of
from pullback.trajectory._state import State
from pullback.trajectory.plans._plan import Plan, make_plan
from pullback.trajectory.plans._rows import keep_limits, miss_limits
from pullback.trajectory.plans._within import combine

__all__ = ["Hurry", "moved_apart"]

# Neighbouring points keep this many samples apart.
_APART = 1.5
_ROUNDS = 16
# How much shorter what is tried is than the best.
_GAINS = (0.04, 0.01, 0.002, 0.0003)
# The pressure is looked at where a motion has so much time to spare: with much of it, that of all
# limits which are near; with little, that of those which are met.
_SPARE = (0.06, 0.015, 0.004)
_STRIDE, _LEAST_STRIDE = 0.5, 0.01
_SHARPNESS = 4
_WANDER = 0.05
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
        """Widths near these, which are kept, whose sum is shorter."""
        for spare in _SPARE if widths.shape[-1] > 1 else ():
            stride = torch.full_like(widths[..., :1], _STRIDE)
            for _ in range(_ROUNDS):
                change = stride * (self._pressure(widths * (1 + spare)) - 1)
                shorter, fits = self._try(widths, change)
                widths = torch.where(fits, shorter, widths)
                stride = torch.where(fits, 1.3 * stride, 0.5 * stride)
                if bool((stride < _LEAST_STRIDE).all()):
                    break
        return self._wander(widths)

    def _wander(self, widths: Tensor) -> Tensor:
        """The same by chance, always the same: where several joints press, no way is theirs all."""
        stride = torch.full_like(widths[..., :1], _WANDER)
        draw = torch.Generator("cpu").manual_seed(0)  # the same numbers whatever the device
        for _ in range(_ROUNDS * len(_SPARE) if widths.shape[-1] > 1 else 0):
            count = widths.shape[-1]
            way = torch.randn(count, generator=draw, dtype=widths.dtype, device="cpu")
            shorter, fits = self._try(widths, stride * way.to(widths.device))
            widths = torch.where(fits, shorter, widths)
            stride = torch.where(fits, 1.3 * stride, (0.9 * stride).clamp(min=_LEAST_STRIDE / 10))
        return widths

    def _try(self, widths: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """The shortest of some with other proportions, and whether limits are kept by any."""
        tried = widths * (1 + change).clamp(min=_SHRINK)
        tried = moved_apart(tried / tried.sum(-1, keepdim=True), self.samples)
        tried = tried * widths.sum(-1, keepdim=True)
        gains = torch.tensor(_GAINS, dtype=widths.dtype, device=widths.device)
        gains = gains.reshape(-1, *(1,) * widths.dim())
        plan = self.plan(tried * (1 - gains))
        fits = self.kept(plan, plan.step).unsqueeze(-1)
        gain = torch.where(fits, gains, 0.0).amax(0)
        return tried * (1 - gain), fits.any(0)

    def _pressure(self, widths: Tensor) -> Tensor:
        """How much each segment's time is worth, one where all are alike."""
        with torch.enable_grad():
            free = widths.detach().requires_grad_()
            plan = self.plan(free)
            x = combine(plan.basis(), plan.values(plan.step))
            change, found = keep_limits(plan, x, self.limits, plan.step)
            jerk = (x + change)[..., 3, :-1]
            cost = jerk.square().sum(-1) * plan.step.unsqueeze(-1) ** -5
            cost = cost.clamp(min=torch.finfo(cost.dtype).tiny).log()
            slopes = [
                torch.autograd.grad(one.sum(), free, retain_graph=True)[0]
                for one in cost.unbind(-1)
            ]
        slope = -torch.stack(slopes, dim=-2)
        hardness = (slope * widths.unsqueeze(-2)).sum(-1).clamp(min=0)
        weight = (hardness / hardness.amax(-1, keepdim=True)) ** _SHARPNESS
        total = (weight.unsqueeze(-1) * slope).sum(-2)
        mean = (total * widths).sum(-1, keepdim=True) / widths.sum(-1, keepdim=True)
        sound = found.all(-1, keepdim=True) & torch.isfinite(total / mean).all(-1, keepdim=True)
        return torch.where(sound, total / mean, torch.ones_like(total))

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
