"""`resample`: a motion at other time steps."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.trajectory._checks import concrete, wide_dtype
from pullback.trajectory._motion import Motion
from pullback.trajectory._seconds import check_range, take_seconds
from pullback.trajectory._state import PARTS
from pullback.trajectory.curves._quintic import hermite
from pullback.trajectory.curves._spline import Spline

__all__ = ["resample"]

# Samples: no machine holds the motion of more.
_MOST = 10**9


def resample(motion: Motion, dt: float | Tensor) -> Motion:
    """Sample a motion at other steps, by the quintics that meet its states at every sample.

    A motion whose positions, velocities and accelerations agree keeps all three, and polynomials
    up to the fifth degree are reproduced. The first and last samples stay: where the duration is
    no multiple of ``dt`` the last step is shorter, and the steps of the result are then listed.

    Differentiable in the motion, its steps and ``dt``. How many samples there are is decided by
    values, so ``dt`` and the duration must be known: neither below vmap nor while compiling. With
    ``fullgraph=True`` Dynamo raises its own ``Unsupported`` instead of ours.

    Arguments:
        motion: ``[..., horizon, dof]`` with at least two samples.
        dt: the new step in seconds, one positive number.

    Returns:
        a motion ``[..., samples, dof]`` of the same dtype over the same duration.

    Raises:
        ArgumentError: a step that is not positive, is longer than the motion, or makes more than a
            billion samples of it; fewer than two samples; trajectories of different durations,
            which would have different lengths.
        ArgumentTypeError: not a motion, or a step that is not one number.
        UnsupportedError: under vmap over the step, or while compiling without ``fullgraph``.

    Example:
        >>> import torch
        >>> from pullback.trajectory import quintic
        >>> coarse = quintic(torch.tensor([[0.0], [1.0]]), [0.0, 1.0]).sample([0.0, 0.5, 1.0])
        >>> fine = resample(coarse, 0.25)
        >>> fine.position.flatten().tolist()
        [0.0, 0.103515625, 0.5, 0.896484375, 1.0]
    """
    if not isinstance(motion, Motion):
        raise ArgumentTypeError(
            "Only a motion can be resampled.", given=type(motion).__name__, expected="a Motion"
        )
    if motion.horizon < 2:
        raise ArgumentError(
            "The motion is too short to be resampled.",
            given=f"{motion.horizon} samples",
            expected="2 or more",
        )
    # Widened first: a sum of float32 steps would lose what the samples know.
    old = replace(motion, dt=motion.dt.to(torch.float64), start_time=None).times
    step = _step(dt, old)
    coarse = [t.dtype for t in (motion.dt, dt) if isinstance(t, Tensor)]
    whole, rest = _count(step, old, max(torch.finfo(dtype).eps for dtype in coarse))
    inner = step * torch.arange(whole + rest, dtype=torch.float64, device=old.device)
    new = torch.cat([inner.expand(*old.shape[:-1], -1), old[..., -1:]], dim=-1)
    exact = [getattr(motion, name).to(torch.float64) for name in PARTS[:3]]
    spline = Spline(old, hermite(*exact, width=old.diff(dim=-1)))
    found = spline.sample(new)
    steps = found.dt if rest else step
    dtype = motion.position.dtype
    return Motion(
        *(getattr(found, name).to(dtype) for name in PARTS),
        dt=steps.to(wide_dtype(dtype)),
        start_time=motion.start_time,
    )


def _step(dt: Any, like: Tensor) -> Tensor:
    dt = take_seconds("step", dt, like)
    if dt.dim():
        raise ArgumentTypeError(
            "The step is not one number.",
            given=f"shape {tuple(dt.shape)}",
            expected="seconds, a number or a floating tensor without dimensions",
        )
    return dt.to(device=like.device, dtype=torch.float64)


def _count(step: Tensor, times: Tensor, coarse: float) -> tuple[int, bool]:
    """How many whole steps there are in times since sample 0, and whether a shorter one remains.

    A step is rounded to a part of itself, ``coarse``.
    """
    value, ends = concrete(step), concrete(times[..., -1])
    if value is None or ends is None or value.dim():
        raise UnsupportedError(
            "The number of samples depends on values that are not known here.",
            given="resample under vmap over the step, or while compiling",
            mend="Resample outside the transform, or use Spline.sample with given times.",
        )
    seconds = float(value)
    number = torch.finfo(torch.float64)
    check_range("step", seconds, number.tiny, number.max, "finite seconds > 0")
    if not ends.numel():
        raise ArgumentError("The batch is empty, so the duration is unknown.")
    first, last = float(ends.min()), float(ends.max())
    if last - first > 1e-6 * last:
        raise ArgumentError(
            "Trajectories of different durations would get different numbers of samples.",
            given=f"durations from {first:.6g} to {last:.6g} s",
            mend="Resample them one by one, or use Spline.sample with times for each.",
        )
    steps = last / seconds
    if steps > _MOST:
        raise ArgumentError(
            "The step makes too many samples of the motion.",
            given=f"{seconds:.6g} s of {last:.6g} s, {steps:.3g} samples",
            expected=f"{_MOST:.0e} at most",
        )
    # A rest within the rounding of all steps, or between two durations, is none. At most a quarter:
    # where steps are that coarse, nobody knows.
    slack = min(1e-6 + coarse * steps + (last - first) / seconds, 0.25)
    whole = math.floor(steps + slack)
    if whole < 1:
        raise ArgumentError(
            "The step is longer than the motion.", given=f"{seconds:.6g} s of {last:.6g} s"
        )
    return whole, steps - whole > slack
