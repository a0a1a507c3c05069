"""One program over the states of a motion: a batch of joints, in whole arrays of numpy.

The unknowns of a joint are position, velocity and acceleration at each sample and the jerk of each
step, ``x [4, samples]``, in units of the whole duration. With rows ``G x = form . x`` at each
sample, conditions ``A x = b`` and the cost ``x' P x / 2``, each step of each method solves

    (P + G' diag(stiff) G) x + A' y = q,   A x = b

by Riccati's recursion (`_reference`), in time linear in the samples. Nothing is differenced, so
that its condition does not grow with the sixth power of the samples, as that of spline coefficients
does.

All arrays have their joints last, so that what is one number of a joint stands beside them all.
"""

from typing import Any, NamedTuple

import numpy as np

from pullback.trajectory.kernels.states._reference import met

__all__ = ["Program", "System", "meet", "pick", "stiffness", "whole"]

# Of the largest part of the matrix: without a cost, what no row holds is held by this.
_PROXIMAL = 1e-16
# How much stiffer than the motion at its stiffest springs are, and passes at most.
_SPRING = 1e4
_STIFFEST = 1e13
_PASSES, _CYCLE = 4, 10
# Of what is aimed at, near enough.
_CLOSE = 1e-14
# How many joints a kernel takes together.
_VECTOR = 8
_PAIRS = np.triu_indices(4)
_TINY = float(np.finfo(float).tiny)
# Rows beside a row for which springs are stiffer: with more, rounding would be too.
_BESIDE = 2


class Program(NamedTuple):
    """What motions are to do, ``batch`` joints of them."""

    # [kinds, samples, batch], one over half the width of a range, zero where nothing is limited.
    scale: np.ndarray
    form: np.ndarray  # [kinds, 4], what a kind of row is of a state and a jerk
    alpha: np.ndarray  # [few, 4, batch], what each condition is of a state and a jerk
    place: np.ndarray  # [few, batch], at which sample
    cost: np.ndarray  # [3, batch], of acceleration^2, acceleration times jerk, and jerk^2
    order: int  # of the cost, 2 or 3
    kernels: Any  # the module with the recursion

    @property
    def h(self) -> float:
        """The step, as a part of the duration."""
        return 1 / (self.scale.shape[1] - 1)

    def at(self, some: Any) -> "Program":
        """Some of the joints."""
        return self._replace(
            scale=pick(self.scale, some), alpha=pick(self.alpha, some),
            place=pick(self.place, some), cost=pick(self.cost, some),
        )  # fmt: skip

    def integrate(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The motions ``[columns, 4, samples, batch]`` of first states and jerks, and ``G x``."""
        x = self.kernels.integrate(x, self.h)
        return x, _mixed(self.form, x) * self.scale

    def met(self, x: np.ndarray) -> np.ndarray:
        """``A x [columns, few, batch]``."""
        return met(self.alpha, self.place, x)

    def pushed(self, force: np.ndarray) -> np.ndarray:
        """``G' f [columns, 4, samples, batch]``."""
        return _mixed(self.form.T, force * self.scale)

    def pull_cost(self, x: np.ndarray) -> np.ndarray:
        """``P x``."""
        q, (aa, au, uu) = np.zeros(x.shape), self.cost
        a, j = x[:, 2, :-1], x[:, 3, :-1]
        if self.order == 2:
            q[:, 2, :-1] = aa * a + au * j
            q[:, 3, :-1] = au * a
        q[:, 3, :-1] += uu * j
        return q


def whole(index: np.ndarray) -> np.ndarray:
    """Numbers of joints, the last one again and again up to whole vectors of them.

    What is found of a joint more than once is the same each time.
    """
    count = len(index)  # not by np.pad, which takes ten times as long
    return index[np.minimum(np.arange(count + -count % _VECTOR), count - 1)]


def pick(part: np.ndarray, some: np.ndarray) -> np.ndarray:
    """What belongs to some of the joints, without gaps, as kernels take it."""
    return part.take(some, axis=-1)


def _mixed(weights: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """``weights [n, m]`` times ``parts [columns, m, samples, batch]``, by one product of BLAS."""
    columns, many, samples, batch = parts.shape
    flat = weights @ parts.reshape(columns, many, samples * batch)
    return flat.reshape(columns, len(weights), samples, batch)


class System:
    """The matrix of a program with springs ``stiff [kinds, samples, batch]``, factorised."""

    def __init__(self, program: Program, stiff: np.ndarray) -> None:
        self.program = program
        alpha, place, form = program.alpha, program.place, program.form
        springs = program.scale**2 * stiff
        # What it costs to move by one within one: the unit of time is the whole duration.
        here = np.tensordot((form**2).sum(1), springs, 1)[:-1] + program.cost[0] + program.cost[2]
        held = program.cost.copy()
        held[2] = np.where(held[2] > 0, held[2], _PROXIMAL * here.max(0))
        # With conditions beside it the matrix is definite where it is not alone.
        self.weight = 100 * (here.mean(0) + _hold(program))
        first, second = _PAIRS
        blocks = _mixed((form[:, first] * form[:, second]).T, springs[None])[0]
        blocks[7:, :-1] += held[:, None]
        batch = springs.shape[-1]
        flat, weight = blocks.reshape(10, -1), self.weight[:, None]
        squares = weight * alpha[:, first] * alpha[:, second]
        for square, at in zip(squares, place * batch + np.arange(batch), strict=True):
            flat[:, at] += square
        self.gains, last = program.kernels.factorise(blocks, program.h)
        matrix = last[[0, 1, 2, 1, 3, 4, 2, 4, 5]].T.reshape(-1, 3, 3)
        sound = np.isfinite(matrix).all((1, 2)) & (self.weight > 0).all(0)
        sound &= (self.gains[3, :-1] > 0).all(0)
        self.inverse = _inverted(matrix, sound)
        units = np.broadcast_to(np.eye(len(alpha))[..., None], (len(alpha), *place.shape))
        nothing = np.zeros((len(alpha), 4, *springs.shape[1:]))
        schur = self._sweep(nothing, units)[1].transpose(2, 1, 0)
        self.schur = _inverted((schur + schur.swapaxes(1, 2)) / 2, sound)

    def _sweep(self, q: np.ndarray, pull: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        program = self.program
        conditions = program.alpha, program.place, pull
        return program.kernels.sweep(self.gains, self.inverse, q, conditions, program.h)

    def solve(
        self, q: np.ndarray, force: np.ndarray, y: np.ndarray, gap: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``x``, ``y`` and ``G x`` for ``q + G' force - A' y`` and ``A x = gap``, with columns.

        What is in ``q`` may be lost.
        """
        q = np.ascontiguousarray(q + self.program.pushed(force) if force.size else q)
        x, met = self._sweep(q, self.weight * gap - y)
        more = np.einsum("fij,cij->cfj", self.schur, met - gap)
        # Apart: beside the forces, what conditions take would be rounded.
        x, reached = self.program.integrate(x - self._sweep(np.zeros(q.shape), more)[0])
        return x, more, reached


def _hold(program: Program) -> np.ndarray:
    """How stiff the motion is where its neighbours hold it too: of each condition ``[few, batch]``.

    With the cost of the ``o``-th derivative, a change of the ``d``-th within a time ``g`` costs
    ``g^(1 - 2 (o - d))`` at least. Springs that are softer leave of near conditions together less
    than rounding: what they ask for would be found from differences of motions that are all alike.
    """
    alpha, h, order = program.alpha, program.h, program.order
    kind = (alpha != 0).argmax(1)
    time = program.place * h + np.where(kind == 0, alpha[:, 1], 0.0)
    apart = np.abs(time[:, None] - time)
    # At an end several derivatives are given at once.
    gap = np.where(apart < h / 2, 1.0, apart).min(1)
    unit = program.cost[0 if order == 2 else 2] / h
    return unit * gap ** (1.0 - 2 * (order - kind)) / np.square(alpha).max(1)


def _inverted(matrices: np.ndarray, sound: np.ndarray) -> np.ndarray:
    """Of ``[batch, n, n]``, joints last; NaN where they are not sound."""
    sound = sound & (np.linalg.slogdet(matrices)[0] != 0)  # by rounding, where springs are stiffest
    matrices[~sound] = np.eye(matrices.shape[-1])
    inverse = np.linalg.inv(matrices)
    inverse[~sound] = np.nan
    return np.ascontiguousarray(inverse.transpose(1, 2, 0))


@np.errstate(all="ignore")
def meet(
    program: Program,
    active: np.ndarray,
    target: np.ndarray,
    q: np.ndarray,
    b: np.ndarray,
    *,
    patience: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """``P x + A' y + G' f = q`` with ``A x = b``, and ``G x = target`` where ``active``.

    Returns ``x``, ``y``, ``f`` and ``G x``. Active rows are ``[kinds, samples, batch]``, all
    else has columns, ``[columns, ..., batch]``. It ends with so many passes that change no less
    than those before them, by rounding.

    By multipliers: springs hold the rows, and their forces are added to ``f`` until nothing is
    missed. What rows hardly give way to is found by conjugate gradients over these forces, and what
    rounding has made of stiff springs by the forces that do not balance, in passes between.

    Source: Nocedal and Wright, Numerical Optimization, sections 5.1 and 17.3.
    """
    # Long: two kinds of passes over one state.
    stiff = stiffness(program, active, _SPRING, _STIFFEST)
    system, columns = System(program, stiff), len(q)
    # Few rows are active: what is asked of them stands in lists, beside the joints they are of.
    index = np.flatnonzero(active)
    joint = np.eye(q.shape[-1])[index % q.shape[-1]]
    stiff, aim = stiff.ravel()[index], target.reshape(columns, -1)[:, index]
    pushes = np.zeros(target.shape)

    def spread(force: np.ndarray) -> np.ndarray:
        pushes.reshape(columns, -1)[:, index] = force
        return pushes

    def kept(rows: np.ndarray) -> np.ndarray:
        return rows.reshape(columns, -1)[:, index]

    x, y, force = np.zeros(q.shape), np.zeros(b.shape), np.zeros(aim.shape)
    gone = aim
    close = _CLOSE**2 * (aim**2 @ joint) + _TINY
    way, rest, moved, least, held = aim, np.ones((columns, q.shape[-1])), 1.0, np.inf, 0
    balancing = True
    for turn in range(_PASSES * _CYCLE):
        wanted = stiff * gone
        before, rest = rest, (wanted * gone) @ joint
        far = gone**2 @ joint > close
        begun, balancing = not balancing, turn % _CYCLE < 2 or not far.any()
        if balancing:
            held += not (far.any() or moved < least / 2)
            least = min(least, moved)
            if turn > 2 and held > patience:
                break
            gap = b - program.met(x)
            dx, dy, moves = system.solve(q - program.pull_cost(x), spread(wanted - force), y, gap)
            x, rows = program.integrate(x + dx)
            close = np.maximum(close, (_CLOSE * np.abs(rows).max((1, 2), initial=0.0)) ** 2)
            y, force, gone = y + dy, force + stiff * kept(moves) - wanted, aim - kept(rows)
            size = np.abs(x[:, 3]).max(1).clip(_TINY)
            moved = float((np.abs(dx[:, 3]).max(1) / size).max(initial=0.0))
        else:
            ratio = rest / np.maximum(before, _TINY)
            way = wanted + (ratio @ joint.T) * way if begun else wanted
            dx, dy, moves = system.solve(np.zeros(q.shape), spread(way), 0 * y, 0 * b)
            change = kept(moves)
            bent = (way * change) @ joint
            part = np.where((bent > 0) & far, rest / np.where(bent > 0, bent, 1.0), 0.0)
            x, y, own = x + part[:, None, None] * dx, y + part[:, None] * dy, part @ joint.T
            gone, force = gone - own * change, force + own * (stiff * change - way)
    x, rows = program.integrate(x)
    return x, y, spread(force), rows


def stiffness(
    program: Program, active: np.ndarray, times: float = 1.0, most: float = np.inf
) -> np.ndarray:
    """Of the motion itself at its active rows, where it gives way least; zero at others.

    Some times of it, and at most so many times as stiff as where nothing else is active.

    What is limited is a derivative ``d``. With the cost of the ``o``-th one, the least give of rows
    beside one another is that of a jerk which acts on a difference of theirs alone: with each
    further row it falls by the square of the step, down to ``h^(2 (o - d) - 1)``.
    """
    unit = program.cost[0 if program.order == 2 else 2]
    derivative = (program.form != 0).argmax(-1)
    size = np.take_along_axis(program.form, derivative[:, None], 1)[..., None]
    many = np.pad(active.sum(0), ((2, 2), (0, 0)))
    beside = np.lib.stride_tricks.sliding_window_view(many, 5, axis=0).sum(-1) - 1
    orders = (program.order - derivative)[:, None, None]
    beside = np.minimum(orders, np.minimum(beside, _BESIDE))
    power = -2.0 * beside - (beside < orders)
    own = np.where(active, size * program.scale, np.inf)
    return unit * np.minimum(times * program.h**power, most) / own**2
