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

__all__ = ["add_pull", "factorise", "integrate", "met", "sweep"]

_PAIRS = np.triu_indices(4)


def _dynamics(h: float) -> tuple[np.ndarray, np.ndarray]:
    step = np.array([[1, h, h**2 / 2], [0, 1, h], [0, 0, 1]])
    return step, np.array([h**3 / 6, h**2 / 2, h])


def factorise(blocks: np.ndarray, h: float) -> tuple[np.ndarray, np.ndarray]:
    """The gains of each step and one over its pivot ``[4, samples, batch]``, and the last ``M``.

    From the upper triangles of ``H [10, samples, batch]``, row by row, to that of ``M [6, batch]``.
    A pivot that is not positive belongs to a matrix that is not definite.
    """
    _, samples, batch = blocks.shape
    first, second = _PAIRS
    full = np.empty((batch, samples, 4, 4))
    full[..., first, second] = full[..., second, first] = blocks.T
    gains = np.empty((4, samples, batch))
    step, b = _dynamics(h)
    m = full[:, -1, :3, :3]
    for k in range(samples - 2, -1, -1):
        own, cross, last = full[:, k, :3, :3], full[:, k, :3, 3], full[:, k, 3, 3]
        pull = m @ b
        root = 1 / (last + pull @ b)
        gain = (cross + pull @ step) * root[:, None]
        gains[:3, k], gains[3, k] = gain.T, root
        closed = step - b[:, None] * gain[:, None, :]
        mixed = gain[:, :, None] * cross[:, None, :]
        square = last[:, None, None] * gain[:, :, None] * gain[:, None, :]
        # Joseph's form, a sum of squares, so that rounding leaves it definite.
        m = own - mixed - mixed.swapaxes(1, 2) + square + closed.swapaxes(1, 2) @ m @ closed
    rows, columns = np.triu_indices(3)
    return gains, m[:, rows, columns].T


def add_pull(alpha: np.ndarray, place: np.ndarray, q: np.ndarray, y: np.ndarray) -> None:
    """Add ``A' y`` of ``y [columns, few, batch]`` to forces ``q [columns, 4, samples, batch]``."""
    joints = np.arange(q.shape[-1])
    for i, at in enumerate(place):
        q[:, :, at, joints] += alpha[i] * y[:, None, i]


def met(alpha: np.ndarray, place: np.ndarray, x: np.ndarray) -> np.ndarray:
    """``A x [columns, few, batch]``."""
    return (alpha * x[:, :, place, np.arange(x.shape[-1])].swapaxes(1, 2)).sum(2)


def sweep(
    gains: np.ndarray, inverse: np.ndarray, q: np.ndarray, conditions: tuple[np.ndarray, ...],
    h: float,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The states and jerks that forces ``q + A' pull`` ask for, and what conditions are of them.

    Of the gains, ``inverse [3, 3, batch]`` of the last ``M``, ``q [columns, 4, samples, batch]``,
    to which the pull is added, and ``alpha``, ``place`` and ``pull [columns, few, batch]``.
    """
    alpha, place, pulls = conditions
    add_pull(alpha, place, q, pulls)
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
    return x, met(alpha, place, x)


def integrate(x: np.ndarray, h: float) -> np.ndarray:
    """The states of the jerks and of the first state ``[columns, 4, samples, batch]``.

    First what they have gained, then the first state, beside which the gains would be rounded.
    """
    x = x.copy()
    j = x[:, 3, :-1]
    p, v, a = (x[:, part] for part in range(3))
    a[:, 1:] = a[:, :1] + (h * j).cumsum(1)
    v[:, 1:] = v[:, :1] + (h * (a[:, :-1] + h / 2 * j)).cumsum(1)
    p[:, 1:] = p[:, :1] + (h * (v[:, :-1] + h / 2 * (a[:, :-1] + h / 3 * j))).cumsum(1)
    x[:, 3, -1] = 0
    return x
