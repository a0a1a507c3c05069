"""Riccati's recursion in numpy, all programs at once: the oracle, and the path without numba.

The states ``s = (p, v, a)`` of a sample and the jerk ``j`` of the step after it lead to the next
states ``F s + b j``. The least of ``x' H x / 2 - q' x`` over all states and jerks, ``H`` with a
block of four for each sample, is found from the last sample to the first: what is left of it is
``s' M s / 2`` there, and the jerk ``-K s`` and a part that the forces decide.

All arrays have their joints last.

Source: Rao, Wright and Rawlings, Application of interior-point methods to model predictive control,
1998, section 3.
"""

import numpy as np

__all__ = ["factorise", "integrate", "solve", "spread"]

_PAIRS = np.triu_indices(4)


def _dynamics(h: float) -> tuple[np.ndarray, np.ndarray]:
    step = np.array([[1, h, h**2 / 2], [0, 1, h], [0, 0, 1]])
    return step, np.array([h**3 / 6, h**2 / 2, h])


def factorise(
    springs: np.ndarray, form: np.ndarray, cost: np.ndarray, conditions: tuple[np.ndarray, ...],
    weight: np.ndarray, *, h: float,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The gains of each step and one over its pivot ``[4, samples, batch]``, and the last ``M``.

    Arguments:
        springs: ``[kinds, samples, batch]``, how stiff rows are.
        form: ``[kinds, 4]``, what a kind of row is of a state and a jerk.
        cost: ``[3, batch]`` of squared acceleration, acceleration times jerk and squared jerk.
        conditions: ``alpha [few, 4, batch]`` and ``place [few, batch]``.
        weight: ``[batch]``, how much the squares of these count.
        h: the step.

    Returns:
        the gains, and ``M [6, batch]``, the upper triangle. A pivot that is not positive belongs to
        a matrix that is not definite.
    """
    first, second = _PAIRS
    blocks = np.tensordot((form[:, first] * form[:, second]).T, springs, 1)
    for alpha, place in zip(*conditions, strict=True):
        blocks[:, place, np.arange(len(place))] += weight * alpha[first] * alpha[second]
    blocks[7:, :-1] += cost[:, None]
    full = np.empty((springs.shape[2], springs.shape[1], 4, 4))
    full[..., first, second] = full[..., second, first] = blocks.T
    gains = np.empty((4, *springs.shape[1:]))
    step, b = _dynamics(h)
    m = full[:, -1, :3, :3]
    for k in range(springs.shape[1] - 2, -1, -1):
        own, cross, last = full[:, k, :3, :3], full[:, k, :3, 3], full[:, k, 3, 3]
        pull = m @ b
        root = 1 / (last + pull @ b)
        gain = (cross + pull @ step) * root[:, None]
        gains[:3, k], gains[3, k] = gain.T, root
        closed = step - b[:, None] * gain[:, None, :]
        mixed = gain[:, :, None] * cross[:, None, :]
        square = last[:, None, None] * gain[:, :, None] * gain[:, None, :]
        m = own - mixed - mixed.swapaxes(1, 2) + square + closed.swapaxes(1, 2) @ m @ closed
    rows, columns = np.triu_indices(3)
    return gains, m[:, rows, columns].T


def _sweep(gains: np.ndarray, inverse: np.ndarray, h: float, q: np.ndarray) -> np.ndarray:
    """The states and jerks that forces ``[columns, 4, samples, batch]`` ask for."""
    step, b = _dynamics(h)
    x, p = np.zeros(q.shape), q[:, :3, -1]
    for k in range(q.shape[2] - 2, -1, -1):
        pull = q[:, 3, k] + np.einsum("d,cdj->cj", b, p)
        x[:, 3, k] = pull * gains[3, k]
        p = q[:, :3, k] + np.einsum("de,cdj->cej", step, p) - gains[:3, k] * pull[:, None]
    s = np.einsum("dej,cej->cdj", inverse, p)
    for k in range(q.shape[2] - 1):
        x[:, 3, k] -= (gains[:3, k] * s).sum(1)
        x[:, :3, k] = s
        s = np.einsum("de,cej->cdj", step, s) + b[:, None] * x[:, None, 3, k]
    x[:, :3, -1] = s
    return x


def _pulled(alpha: np.ndarray, place: np.ndarray, y: np.ndarray, samples: int) -> np.ndarray:
    """``A' y [columns, 4, samples, batch]`` of conditions ``alpha [few, 4, batch]``."""
    q = np.zeros((len(y), 4, samples, y.shape[-1]))
    joints = np.arange(y.shape[-1])
    for i, at in enumerate(place):
        q[:, :, at, joints] += alpha[i] * y[:, None, i]
    return q


def _met(alpha: np.ndarray, place: np.ndarray, x: np.ndarray) -> np.ndarray:
    """``A x [columns, few, batch]``."""
    joints = np.arange(x.shape[-1])
    parts = [(alpha[i] * x[:, :, at, joints]).sum(1) for i, at in enumerate(place)]
    return np.stack(parts, 1) if parts else np.zeros((len(x), 0, x.shape[-1]))


def spread(
    gains: np.ndarray, inverse: np.ndarray, alpha: np.ndarray, place: np.ndarray, h: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What each condition ``alpha [few, 4, batch]`` at ``place [few, batch]`` asks for.

    ``inverse [3, 3, batch]`` is that of the last ``M``. The jerks ``[few, samples, batch]`` and the
    first states ``[few, 3, batch]``, and what the conditions are of these, ``[few, few, batch]``.
    """
    few, _, batch = alpha.shape
    units = np.broadcast_to(np.eye(few)[:, :, None], (few, few, batch))
    x = _sweep(gains, inverse, h, _pulled(alpha, place, units, gains.shape[1]))
    return x[:, 3].copy(), x[:, :3, 0].copy(), _met(alpha, place, x).swapaxes(0, 1).copy()


def solve(
    factor: tuple[np.ndarray, ...],
    conditions: tuple[np.ndarray, ...],
    rows: tuple[np.ndarray, ...],
    right: tuple[np.ndarray, ...],
    h: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``x``, ``y`` and ``G x`` for forces ``q + G' force + A' pull`` and ``A x = gap``.

    Arguments:
        factor: gains, inverse, jerks and starts, as above, and the inverse of what is met.
        conditions: ``alpha`` and ``place``.
        rows: their scale ``[kinds, samples, batch]`` and form.
        right: ``q [columns, 4, samples, batch]``, the force ``[columns, kinds, samples, batch]``,
            the pull and the gap, each ``[columns, few, batch]``.
        h: the step.
    """
    gains, inverse, jerks, starts, schur = factor
    (alpha, place), (scale, form), (q, force, pull, gap) = conditions, rows, right
    q = q + _pulled(alpha, place, pull, q.shape[2])
    q += np.einsum("kd,cksj->cdsj", form, force * scale)
    x = _sweep(gains, inverse, h, q)
    y = np.einsum("fij,cij->cfj", schur, _met(alpha, place, x) - gap)
    x[:, 3] -= np.einsum("cij,isj->csj", y, jerks)
    x[:, :3, 0] -= np.einsum("cij,idj->cdj", y, starts)
    x, reached = integrate(x, rows, h)
    return x, y, reached


def integrate(
    x: np.ndarray, rows: tuple[np.ndarray, ...], h: float
) -> tuple[np.ndarray, np.ndarray]:
    """The states of the jerks and of the first state, and their rows.

    Differences of large motions keep less.
    """
    x, (scale, form) = x.copy(), rows
    j = x[:, 3, :-1]
    p, v, a = (x[:, part] for part in range(3))
    a[:, 1:] = a[:, :1] + (h * j).cumsum(1)
    v[:, 1:] = v[:, :1] + (h * (a[:, :-1] + h / 2 * j)).cumsum(1)
    p[:, 1:] = p[:, :1] + (h * (v[:, :-1] + h / 2 * (a[:, :-1] + h / 3 * j))).cumsum(1)
    x[:, 3, -1] = 0
    return x, np.einsum("kd,cdsj->cksj", form, x) * scale
