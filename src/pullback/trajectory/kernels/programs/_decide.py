"""Decide whether limits can be kept, and solve what is too hard for spline coefficients.

The program of one joint in the terms of `pullback.trajectory.kernels.stages`: coefficients of a
step are its states, per step ``c = (p - v + a/3, p - a/6, p + v + a/3, p + 2v + 11a/6 + j)``.
It runs on the CPU, one joint after another, for those that need it.
"""

import importlib.util
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pullback.errors import UnsupportedError
from pullback.internal.kernels._backend import implementation
from pullback.trajectory.kernels.programs._problem import (
    FLOOR,
    ROWS,
    Problem,
    Unknowns,
    goal_of,
)

__all__ = ["Bounds", "bound_problems", "solve_hard"]

_STAGES = "pullback.trajectory.kernels.stages"
_TO_COEFFICIENTS = np.array(
    [[1, -1, 1 / 3, 0], [1, 0, -1 / 6, 0], [1, 1, 1 / 3, 0], [1, 2, 11 / 6, 1]]
)
# Rows as parts of position, velocity, acceleration and jerk per step, and at which row the first
# sample is.
_CHANNELS = {
    "velocity": ((0, 1, 1 / 2, 0), 1),
    "acceleration": ((0, 0, 1, 0), 0),
    "jerk": ((0, 0, 0, 1), 0),
    "position": ((1, 0, 0, 0), 0),
    "ahead": ((1, 1 / 3, 0, 0), 1),
    "behind": ((1, -1 / 3, 0, 0), 0),
    "end velocity": ((0, 1, 0, 0), 0),
}
_BEFORE = (0, 1, -1 / 2, 0)


class Bounds(NamedTuple):
    """How many times as wide limits need to be, at least and at most: each ``[..., joint]``."""

    low: Tensor
    high: Tensor


def bound_problems(problem: Problem, precision: float) -> Bounds:
    """Bound by how much each joint misses its limits, above 1 to a relative precision.

    Below 1 it keeps them.

    Raises:
        UnsupportedError: numba is not installed.
    """
    kernels = _kernels()
    shape = problem.level.shape[:-1]
    programs = _programs(problem, range(shape.numel()))
    found = [kernels.least_bound(one, precision)[:2] for one in programs]
    low, high = (
        torch.tensor([pair[i] for pair in found], dtype=torch.float64, device="cpu").reshape(shape)
        for i in range(2)
    )
    peak = _fixed_peak(problem).cpu()
    worse = peak > 1
    return Bounds(*(torch.where(worse, torch.maximum(part, peak), part) for part in (low, high)))


def _fixed_peak(problem: Problem) -> Tensor:
    """The largest part of a limit at a row that no motion changes, ``[..., joint]``."""
    return torch.where(problem.scale == 0, problem.level.detach().abs(), 0.0).amax(-1)


def solve_hard(problem: Problem, now: Unknowns, found: Tensor) -> tuple[Unknowns, Tensor]:
    """Replace what a quick method has not found, or not near enough, where limits can be kept."""
    if not problem.level.numel() or importlib.util.find_spec("numba") is None:
        return now, found
    rows = problem.level.shape[-1]
    wide = (now.slack * now.push).mean((-2, -1)) > 1.5 * goal_of(rows)
    idle = (problem.level.abs() <= 1).all(-1)
    hard = (~idle & (~found | wide) & (_fixed_peak(problem) <= 1)).reshape(-1).nonzero().squeeze(-1)
    if not hard.numel():
        return now, found
    flat = [part.reshape(found.numel(), *part.shape[found.dim() :]).clone() for part in now]
    success = found.reshape(-1).clone()
    items = hard.tolist()
    for item, one in zip(items, _programs(problem, items), strict=True):
        _solve_one(problem, item, one, flat, success)
    shaped = (part.reshape(like.shape) for part, like in zip(flat, now, strict=True))
    return Unknowns(*shaped), success.reshape(found.shape)


def _solve_one(problem: Problem, item: int, one: Any, flat: list[Tensor], success: Tensor) -> None:
    kernels = _kernels()
    _, high, s, u = kernels.least_bound(one, 1e-6)
    if not high < 1:
        success[item] = False
        return
    samples, rows = problem.samples, problem.level.shape[-1]
    energy = float(problem.energy.expand(problem.level.shape[:-1]).reshape(-1)[item])
    h, goal = 1 / (samples - 1), goal_of(rows)
    unit = np.array([h**4, h**5, h**6]) / energy
    cost = unit * ([0, 0, 1] if problem.order == 3 else [1, 1 / 2, 1 / 3])
    begin = s.copy(), u.copy()
    peak, left, y, slack, push = kernels.least_cost(one, cost, goal, s, u)
    success[item] = peak <= 1 and left <= 2 * goal
    # Derivatives are those of a wider gap where stiff rows would leave nothing of the metric.
    scales = _to_rows(problem, one[1][None].repeat(2, 0))
    force = float(np.max(_to_rows(problem, push) * scales))
    floor = FLOOR * energy * force**2
    if floor > goal:
        *_, y, slack, push = kernels.least_cost(one, cost, floor, *begin)
    found = _coefficients(s, h), y, _to_rows(problem, slack), _to_rows(problem, push)
    for part, value in zip(flat, found, strict=True):
        part[item] = torch.from_numpy(value).to(part.device)


def _kernels() -> Any:
    if importlib.util.find_spec("numba") is None:
        raise UnsupportedError(
            "Whether limits can be kept is decided by a kernel that needs the package numba.",
            mend="pip install numba",
        )
    return implementation(_STAGES, "cpu")


def _programs(problem: Problem, items: Iterable[int]) -> Iterator[Any]:
    """Some of the programs, one after another, as the kernels take them."""
    batch, rows = problem.level.shape[:-1], problem.level.shape[-1]
    level = problem.level.detach().reshape(-1, rows).cpu()
    scale = problem.scale.detach().expand(*batch, rows).reshape(-1, rows).cpu()
    matrix = problem.conditions.shape[-2:]
    shared = problem.conditions.detach().numel() == matrix.numel()
    conditions = problem.conditions.detach().cpu()
    conditions = conditions.reshape(1, *matrix) if shared else conditions.expand(*batch, *matrix)
    conditions = conditions.reshape(-1, *matrix).numpy()
    places = _conditions(conditions[0]) if shared else None
    for item in items:
        yield (
            *_channels(problem, level[item].numpy(), scale[item].numpy()),
            *(places or _conditions(conditions[item])),
        )


def _channels(
    problem: Problem, level: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    samples, begin = problem.samples, 0
    levels, scales, forms = [], [], []
    for kind in problem.kinds:
        form, first = _CHANNELS[kind]
        end = begin + samples + 3 - len(ROWS[kind])
        if kind == "velocity":
            levels.append(np.pad(level[begin : begin + 1], (0, samples - 1)))
            scales.append(np.pad(scale[begin : begin + 1], (0, samples - 1)))
            forms.append(_BEFORE)
        own = slice(begin + first, min(begin + first + samples, end))
        short = samples - (own.stop - own.start)
        levels.append(np.pad(level[own], (0, short)))
        scales.append(np.pad(scale[own], (0, short)))
        forms.append(form)
        begin = end
    units = (1 / (samples - 1)) ** np.arange(4)
    return np.stack(levels), np.stack(scales), np.array(forms) * units


def _to_rows(problem: Problem, sides: np.ndarray) -> np.ndarray:
    """Values ``[2, channels, samples]`` in the order of the rows, ones and zeros where masked."""
    parts, channel, samples = [], 0, problem.samples
    for kind in problem.kinds:
        first, rows = _CHANNELS[kind][1], samples + 3 - len(ROWS[kind])
        part = np.pad(
            sides[:, channel, : min(rows, samples)], ((0, 0), (0, max(rows - samples, 0)))
        )
        if kind == "velocity":
            part = np.concatenate([sides[:, channel, :1], sides[:, channel + 1]], axis=1)
            channel += 1
        elif first:
            part = np.concatenate([sides[:, channel, :1], sides[:, channel]], axis=1)
        elif rows > samples:
            part[:, -1] = part[:, -2]
        channel += 1
        parts.append(part)
    return np.concatenate(parts, axis=1)


def _conditions(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each condition is, and its parts of position, velocity, acceleration and jerk."""
    few, samples = matrix.shape[0], matrix.shape[1] - 2
    place, parts = np.zeros(few, np.int64), np.zeros((few, 4))
    units = (1 / (samples - 1)) ** np.arange(4)
    for row in range(few):
        used = np.flatnonzero(matrix[row])
        place[row] = k = used[0] if used[0] == samples - 1 else min(used[0], samples - 2)
        weights = matrix[row, k : k + 4]
        parts[row] = weights @ _TO_COEFFICIENTS[: len(weights)] * units
    return place, parts


def _coefficients(s: np.ndarray, h: float) -> np.ndarray:
    p, v, a = s[:, 0], s[:, 1] * h, s[:, 2] * h**2
    ends = p[:1] - v[:1] + a[:1] / 3, p - a / 6, p[-1:] + v[-1:] + a[-1:] / 3
    return np.concatenate(ends)
