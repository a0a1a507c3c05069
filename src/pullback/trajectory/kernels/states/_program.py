"""One program over the states of a motion: a batch of joints, in whole arrays of numpy.

The unknowns of a joint are position, velocity and acceleration at each sample and the jerk of each
step, ``x [4, samples]``, in units of the whole duration. With rows ``G x = form . x`` at each
sample, conditions ``A x = b`` and the cost ``x' P x / 2``, each step of each method solves

    (P + G' diag(stiff) G) x + A' y = q,   A x = b

by Riccati's recursion (`_reference`), in time linear in the samples. Nothing is differenced, so
that its condition does not grow with the sixth power of the samples, as that of spline coefficients
does.
"""

import math
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Program", "System", "meet", "stiffness"]

# Of the largest part of the matrix: what no row and no cost holds is held by this.
_PROXIMAL = 1e-13
# How much stiffer than the motion at its stiffest springs are, and passes at most.
_SPRING = 100.0
_STIFFEST = 1e13
_PASSES, _CYCLE = 4, 10
# Of what is aimed at, near enough.
_CLOSE = 1e-14
_TINY = float(np.finfo(float).tiny)
# Rows beside a row for which springs are stiffer: with more, rounding would be too.
_BESIDE = 2
_PAIRS = np.triu_indices(4)


class Program(NamedTuple):
    """What motions are to do, ``batch`` joints of them.

    Arguments:
        scale: ``[batch, kinds, samples]``, one over half the width of a range, zero where nothing
            is limited.
        form: ``[kinds, 4]``, what a kind of row is of a state and a jerk.
        conditions: ``[1 or batch, few, 4 samples]``, the matrix ``A``.
        cost: ``[batch, 3]`` of squared acceleration, acceleration times jerk and squared jerk.
        order: of the cost, 2 or 3.
        kernels: the module with the recursion.
    """

    scale: np.ndarray
    form: np.ndarray
    conditions: np.ndarray
    cost: np.ndarray
    order: int
    kernels: Any

    @property
    def h(self) -> float:
        """The step, as a part of the duration."""
        return 1 / (self.scale.shape[-1] - 1)

    def at(self, some: Any) -> "Program":
        """Some of the joints."""
        shared = len(self.conditions) == 1
        conditions = self.conditions if shared else self.conditions[some]
        return self._replace(scale=self.scale[some], conditions=conditions, cost=self.cost[some])

    def rows(self, x: np.ndarray) -> np.ndarray:
        """``G x`` as parts of the limits, ``[batch, (columns,) kinds, samples]``."""
        return (self.form @ x) * _beside(self.scale, x)

    def pull_rows(self, weights: np.ndarray) -> np.ndarray:
        """``G' w``, the transpose of `rows`."""
        return self.form.T @ (weights * _beside(self.scale, weights))

    def conditions_of(self, x: np.ndarray) -> np.ndarray:
        """``A x [batch, (columns,) few]``."""
        flat = x.reshape(len(x), math.prod(x.shape[1:-2]), math.prod(x.shape[-2:]))
        found = flat @ self.conditions.swapaxes(1, 2)
        return found.reshape(*x.shape[:-2], self.conditions.shape[1])

    def pull_conditions(self, y: np.ndarray) -> np.ndarray:
        """``A' y``."""
        pulled = y.reshape(len(y), math.prod(y.shape[1:-1]), y.shape[-1]) @ self.conditions
        return pulled.reshape(*y.shape[:-1], 4, self.scale.shape[-1])

    def pull_cost(self, x: np.ndarray) -> np.ndarray:
        """``P x``."""
        q = np.zeros(x.shape)
        aa, au, uu = (_beside(part, x[..., 0, :]) for part in self.cost.T[:, :, None])
        q[..., 2, :-1] = aa * x[..., 2, :-1] + au * x[..., 3, :-1]
        q[..., 3, :-1] = au * x[..., 2, :-1] + uu * x[..., 3, :-1]
        return q


def _beside(part: np.ndarray, other: np.ndarray) -> np.ndarray:
    """What columns share, beside all of them."""
    return part if part.ndim == other.ndim else part[:, None]


class System:
    """The matrix of a program with springs ``stiff [batch, kinds, samples]``, factorised."""

    def __init__(self, program: Program, stiff: np.ndarray) -> None:
        self.program = program
        batch, _, samples = program.scale.shape
        first, second = _PAIRS
        products = program.form[:, first] * program.form[:, second]
        blocks = products.T @ (program.scale**2 * stiff)
        blocks[:, 7:, :-1] += program.cost[:, :, None]
        # What it costs to move by one within one: the unit of time is the whole duration.
        here = blocks[:, [0, 4, 7, 9], :-1].sum(1)
        blocks[:, 9, :-1] += _PROXIMAL * here.max(-1, keepdims=True)
        # With conditions beside it the matrix is definite where it is not alone.
        self.weight = 100 * here.mean(-1)
        few = program.conditions.shape[1]
        parts = program.conditions.reshape(len(program.conditions), few, 4, samples)
        squares = (parts[:, :, first] * parts[:, :, second]).sum(1)
        blocks += self.weight[:, None, None] * squares
        self.gains, last = program.kernels.factorise(blocks, program.h)
        whole = last[:, [0, 1, 2, 1, 3, 4, 2, 4, 5]].reshape(-1, 3, 3)
        sound = np.isfinite(whole).all((1, 2)) & (self.weight > 0)
        whole[~sound] = np.eye(3)
        self.first = np.linalg.inv(whole)
        self.first[~sound] = np.nan
        every = np.broadcast_to(parts, (batch, *parts.shape[1:]))
        self.spread = program.kernels.sweep(self.gains, self.first, program.h, every)
        flat = self.spread.reshape(batch, self.spread.shape[1], 4 * samples)
        schur = program.conditions @ flat.swapaxes(1, 2)
        schur = (schur + schur.swapaxes(1, 2)) / 2
        schur[~sound] = np.eye(schur.shape[-1])
        self.schur = np.linalg.inv(schur)

    def solve(self, q: np.ndarray, gap: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``x`` and ``y`` for forces ``q [batch, (columns,) 4, samples]`` and ``A x = gap``."""
        if q.ndim == 3:
            x, y = self.solve(q[:, None], gap[:, None])
            return x[:, 0], y[:, 0]
        program, spread = self.program, self.spread
        q = q + program.pull_conditions(self.weight[:, None, None] * gap)
        x = program.kernels.sweep(self.gains, self.first, program.h, q)
        y = (program.conditions_of(x) - gap) @ self.schur
        x -= (y @ spread.reshape(*spread.shape[:2], 4 * x.shape[-1])).reshape(x.shape)
        return integrate(x, program.h), y


def integrate(x: np.ndarray, h: float) -> np.ndarray:
    """The states of the jerks and of the first state: differences of large motions keep less."""
    found, j = x.copy(), x[..., 3, :-1]
    p, v, a = (found[..., part, :] for part in range(3))
    a[..., 1:] = a[..., :1] + (h * j).cumsum(-1)
    v[..., 1:] = v[..., :1] + (h * (a[..., :-1] + h / 2 * j)).cumsum(-1)
    p[..., 1:] = p[..., :1] + (h * (v[..., :-1] + h / 2 * (a[..., :-1] + h / 3 * j))).cumsum(-1)
    found[..., 3, -1] = 0
    return found


def meet(
    program: Program,
    active: np.ndarray,
    target: np.ndarray,
    q: np.ndarray,
    b: np.ndarray,
    *,
    patience: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``P x + A' y + G' f = q`` with ``A x = b``, and ``G x = target`` where ``active``.

    Active rows are ``[batch, kinds, samples]``, all else has columns, ``[batch, columns, ...]``. It
    ends with so many passes that change no less than those before them, by rounding.

    By multipliers: springs hold the rows, and their forces are added to ``f`` until nothing is
    missed. What rows hardly give way to is found by conjugate gradients over these forces, and what
    rounding has made of stiff springs by the forces that do not balance, in passes between.

    Source: Nocedal and Wright, Numerical Optimization, sections 5.1 and 17.3.
    """
    stiff = stiffness(program, active, _SPRING, _STIFFEST)[:, None]
    x, y, force = np.zeros(q.shape), np.zeros(b.shape), np.zeros(target.shape)
    system = System(program, stiff[:, 0])
    target = np.where(active[:, None], target, 0.0)
    close = _CLOSE * (np.abs(target).max((2, 3), initial=0.0) + _TINY)
    way, rest, moved, least, held = stiff, np.ones(b.shape[:2]), 1.0, np.inf, 0
    for turn in range(_PASSES * _CYCLE):
        gone = np.where(active[:, None], target - program.rows(x), 0.0)
        off, wanted = np.abs(gone).max((2, 3), initial=0.0), stiff * gone
        before, rest = rest, (wanted * gone).sum((2, 3))
        far = off > close
        if turn % _CYCLE < 2 or not far.any():
            gap = b - program.conditions_of(x)
            held = 0 if far.any() or moved < least / 2 else held + 1
            least = min(least, moved)
            if turn > 2 and (held > patience):
                break
            right = q - program.pull_cost(x) - program.pull_conditions(y)
            right += program.pull_rows(wanted - force)
            way, part = wanted, np.ones(far.shape)
            dx, dy = system.solve(right, gap)
        else:
            ratio = rest / np.maximum(before, _TINY) if turn % _CYCLE > 2 else 0 * rest
            way = wanted + ratio[..., None, None] * way
            dx, dy = system.solve(program.pull_rows(way), np.zeros(b.shape))
            bent = (way * program.rows(dx)).sum((2, 3))
            part = np.where((bent > 0) & far, rest / np.where(bent > 0, bent, 1.0), 0.0)
        x = x + part[..., None, None] * dx
        if turn % _CYCLE < 2 or not far.any():
            x = integrate(x, program.h)
        size = np.abs(x[..., 3, :]).max(-1, initial=_TINY)
        moved = float((np.abs(dx[..., 3, :]).max(-1) / size).max(initial=0.0))
        y = y + part[..., None] * dy
        force = force + part[..., None, None] * (stiff * program.rows(dx) - way)
    return x, y, force


def stiffness(
    program: Program, active: np.ndarray, times: float = 1.0, most: float = np.inf
) -> np.ndarray:
    """Of the motion itself at its active rows, where it gives way least; zero at others.

    Some times of it, and at most so many times as stiff as where nothing else is active.

    What is limited is a derivative ``d``. With the cost of the ``o``-th one, the least give of rows
    beside one another is that of a jerk which acts on a difference of theirs alone: with each
    further row it falls by the square of the step, down to ``h^(2 (o - d) - 1)``.
    """
    unit = program.cost[:, 0 if program.order == 2 else 2, None, None]
    derivative = (program.form != 0).argmax(-1)
    size = np.take_along_axis(program.form, derivative[:, None], 1)
    many = np.pad(active.sum(1), ((0, 0), (2, 2)))
    beside = np.lib.stride_tricks.sliding_window_view(many, 5, axis=-1).sum(-1)[:, None] - 1
    orders = (program.order - derivative)[:, None]
    power = -2.0 * np.minimum(orders, np.minimum(beside, _BESIDE))
    own = np.where(active, size * program.scale, np.inf)
    return unit * np.minimum(times * program.h**power, most) / own**2
