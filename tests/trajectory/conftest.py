"""Every motion within limits that a test plans is looked at between its samples."""

import dataclasses

import pytest
import torch

from pullback.internal.torch import are_functorch_transforms_active
from pullback.trajectory import Limits, Motion
from pullback.trajectory._checks import concrete
from pullback.trajectory.plans import _minimum_jerk, _minimum_time

# Of half a range, or of what is limited where that is more, for what rounding leaves of rows that
# are met: beside a limit of 1e-3 a float32 of a duration has lost more digits than the room has.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-5}


def assert_within(motion: Motion, limits: Limits) -> None:
    """Hold a motion whose values are known to its limits at every instant."""
    if torch.compiler.is_compiling() or are_functorch_transforms_active():
        return
    if concrete(motion.position) is None or motion.position.dtype not in ROUNDING:
        return
    # Without `between` a position is kept at samples.
    kept = limits if limits.between else dataclasses.replace(limits, position=None)
    for kind, excess in motion.violations(kept).items():
        size = getattr(motion, kind).detach().abs().amax(-2).to(torch.float64)
        room = ROUNDING[motion.position.dtype] * size
        assert bool((excess <= room).all()), (kind, excess.max().item())


@pytest.fixture(autouse=True)
def _within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    least_motion, least_step = _minimum_jerk.least_motion, _minimum_time._least_step
    to_motion, asked = _minimum_time.to_motion, []

    def checked_motion(plan, points, limits):
        motion = least_motion(plan, points, limits)
        if limits is not None:
            assert_within(motion, limits)
        return motion

    def remembered_step(plan, x, limits):
        asked.append(limits)
        return least_step(plan, x, limits)

    def checked_time(plan, x, step):
        motion = to_motion(plan, x, step)
        assert_within(motion, asked.pop())
        return motion

    monkeypatch.setattr(_minimum_jerk, "least_motion", checked_motion)
    monkeypatch.setattr(_minimum_time, "_least_step", remembered_step)
    monkeypatch.setattr(_minimum_time, "to_motion", checked_time)
