"""Segments of a motion that hurries: how to share time among them, and what limits it needs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.trajectory._limits import Limits, range_of
from pullback.trajectory._state import State
from pullback.trajectory.plans._plan import Plan, make_plan
from pullback.trajectory.plans._rows import miss_limits

__all__ = ["Hurry", "moved_apart"]

# Neighbouring points keep this many samples apart.
_APART = 1.5
# How often other proportions are tried, and what is worth a further trial, of the duration.
_ROUNDS, _GAIN = 32, 1e-4
# How far logarithms of widths are changed at once, and by how much slopes are measured.
_STRIDE, _PROBE = 0.2, 0.002
# The largest size of a step: with larger ones the forces of the dual program need more steps.
_LARGEST = 0.8
# To which precision limits are measured for them, and how much narrower, so that none is kept.
_PRECISION, _NARROWER = 1e-5, 4.0
# A need that asks for nothing.
_FAR = 10.0
# Of how many times as wide limits need to be, the logarithm: nearer, a stretch is known well.
_NEAR = 0.02
# Powers of the duration by which a motion may exceed limits, and steps of the dual program.
_POWERS, _STEPS = (1.0, 3.0), 200


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

    def needs(self, plan: Plan, step: Tensor, precision: float) -> tuple[Tensor, Tensor]:
        """Logarithms of how many times as wide limits need to be, at least and at most."""
        tiny = torch.finfo(step.dtype).tiny
        low, high = self._missed(plan, step, precision, _NARROWER)
        return low.clamp(min=tiny).log().to(step.device), high.clamp(min=tiny).log().to(step.device)

    def improve(self, widths: Tensor) -> Tensor:
        """Widths near these whose sum is shorter, as long as slopes show some.

        Each trial gives the logarithm of how many times as wide limits need to be for each joint,
        and its slopes by the logarithms of widths. The next one is a step ``d`` from the best,

            minimise share . d + |d|^2 / (2 size)  with  need + slope . d <= 0

        of all trials within a stride, as the bundle of a nonsmooth function: where several joints
        press, none of their slopes alone leads on. The size grows where a trial is better.

        Source: Bonnans, Gilbert, Lemarechal and Sagastizabal, Numerical Optimization, chapter 10.
        """
        tried, size = widths, torch.full_like(widths[..., :1], _STRIDE)
        best, least, trials = widths, torch.full_like(size, torch.inf), []
        for _ in range(_ROUNDS if widths.shape[-1] > 1 else 0):
            need, slopes = self._slopes(tried)
            # By which all segments are to be stretched alike until limits are kept.
            powers = -slopes.sum(-1)
            stretch = (need / powers.clamp(*_POWERS)).amax(-1, keepdim=True)
            total = tried.sum(-1, keepdim=True).log() + stretch
            better = (total < least) & (stretch < _NEAR)
            best = torch.where(better, tried * stretch.exp(), best)
            least, size = (
                torch.where(better, total, least),
                torch.where(better, 2 * size, size / 2).clamp(max=_LARGEST),
            )
            trials.append((need, slopes, tried.log()))
            share = best / best.sum(-1, keepdim=True)
            step = _shortening(share, *_bundle(trials, best.log()), size)
            if bool(((share * step).sum(-1) > -_GAIN).all()):
                break
            tried = best * step.exp()
            total = tried.sum(-1, keepdim=True)
            tried = moved_apart(tried / total, self.samples) * total
        return best

    def _slopes(self, widths: Tensor) -> tuple[Tensor, Tensor]:
        """The need of `improve` ``[..., dof]``, and its slopes ``[..., dof, count - 1]``."""
        change = torch.eye(widths.shape[-1], dtype=widths.dtype, device=widths.device) * _PROBE
        change = torch.nn.functional.pad(change, (0, 0, 1, 0))
        change = change.reshape(-1, *(1,) * (widths.dim() - 1), widths.shape[-1])
        plan = self.plan(widths * change.exp())
        _, found = self.needs(plan, plan.step, _PRECISION)
        return found[0], ((found[1:] - found[0]) / _PROBE).movedim(0, -1)

    def _missed(
        self, plan: Plan, step: Tensor, precision: float | None = None, narrower: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return miss_limits(plan, self.limits, step, precision, narrower=narrower)

    def _is_fast_enough(self, plan: Plan, step: Tensor) -> Tensor:
        """Whether mean speeds are within the limit, without which nothing is: quick to see."""
        if "velocity" not in self.limits.given:
            return torch.ones_like(step, dtype=torch.bool)
        lower, upper = (end.unsqueeze(-2) for end in range_of(self.limits, "velocity", plan.points))
        seconds = (plan.places.diff(dim=-1) * step.unsqueeze(-1)).unsqueeze(-1)
        mean = plan.points.diff(dim=-2) / seconds
        return ((mean <= upper) & (mean >= lower)).all(-1).all(-1)


def _bundle(trials: list[tuple[Tensor, ...]], place: Tensor) -> tuple[Tensor, Tensor]:
    """Needs at a place by the slopes of each trial, and these; of far trials none that matter."""
    needs = []
    for need, slopes, at in trials:
        away = place - at
        near = away.abs().amax(-1, keepdim=True) <= _STRIDE
        needs.append(torch.where(near, need + (slopes @ away.unsqueeze(-1)).squeeze(-1), -_FAR))
    return torch.cat(needs, dim=-1).clamp(max=0), torch.cat([part[1] for part in trials], dim=-2)


def _shortening(share: Tensor, need: Tensor, slopes: Tensor, size: Tensor) -> Tensor:
    """The step of `Hurry.improve`, from forces ``f >= 0`` on its conditions.

    The dual program is to minimise ``f' S f / 2 - f' (need - size slopes share)`` with ``S = size
    slopes slopes'``, and the step ``-size (share + slopes' f)``.

    Source: Beck and Teboulle, A fast iterative shrinkage-thresholding algorithm, 2009.
    """
    norm = slopes.norm(dim=-1)
    slopes, need = slopes / norm.unsqueeze(-1), (need / norm)
    gram = size.unsqueeze(-1) * slopes @ slopes.mT
    pull = need - size * (slopes @ share.unsqueeze(-1)).squeeze(-1)
    rate = 1 / torch.linalg.matrix_norm(gram, 2).unsqueeze(-1)
    force = ahead = torch.zeros_like(need)
    for number in range(_STEPS):
        last = force
        force = (ahead + rate * (pull - (gram @ ahead.unsqueeze(-1)).squeeze(-1))).clamp(min=0)
        ahead = force + number / (number + 3) * (force - last)
    step = -size * (share + (slopes.mT @ force.unsqueeze(-1)).squeeze(-1))
    # What the forces leave is a stretch.
    left = need + (slopes @ step.unsqueeze(-1)).squeeze(-1)
    step = step + (left / -slopes.sum(-1)).amax(-1, keepdim=True).clamp(min=0)
    return step * (_STRIDE / step.abs().amax(-1, keepdim=True)).clamp(max=1)
