"""Riccati's recursion in numpy, all programs at once: the oracle, and the path without numba.

The states ``s = (p, v, a)`` of a sample and the jerk ``j`` of the step after it lead to the next
states ``F s + b j``. The least of ``x' H x / 2 - q' x`` over all states and jerks, ``H`` with a
block of four for each sample, is found from the last sample to the first: what is left of it is
``s' M s / 2`` there, and the jerk ``-K s`` and a part that the forces decide.

Source: Rao, Wright and Rawlings, Application of interior-point methods to model predictive control,
1998, section 3.
"""

import numpy as np

__all__ = ["factorise", "sweep"]

_PLACES = ((0, 1, 2, 3), (1, 4, 5, 6), (2, 5, 7, 8), (3, 6, 8, 9))


def _dynamics(h: float) -> tuple[np.ndarray, np.ndarray]:
    step = np.array([[1, h, h**2 / 2], [0, 1, h], [0, 0, 1]])
    return step, np.array([h**3 / 6, h**2 / 2, h])


def factorise(blocks: np.ndarray, h: float) -> tuple[np.ndarray, np.ndarray]:
    """The gains of each step and one over its pivot ``[batch, 4, samples]``, and the last ``M``.

    Blocks are ``[batch, 10, samples]``, the upper triangles of the symmetric ones row by row, and
    the last one of these ``[batch, 6]``. What belongs to a matrix that is not definite is NaN.
    """
    full = blocks[:, _PLACES, :]
    gains = np.empty((blocks.shape[0], 4, blocks.shape[2]))
    step, b = _dynamics(h)
    m = full[:, :3, :3, -1]
    for k in range(blocks.shape[2] - 2, -1, -1):
        own, cross, last = full[:, :3, :3, k], full[:, :3, 3, k], full[:, 3, 3, k]
        pull = m @ b
        pivot = last + pull @ b
        root = 1 / np.where(pivot > 0, pivot, np.nan)
        gain = (cross + pull @ step) * root[:, None]
        gains[:, :3, k], gains[:, 3, k] = gain, root
        closed = step - b[:, None] * gain[:, None, :]
        mixed = gain[:, :, None] * cross[:, None, :]
        square = last[:, None, None] * gain[:, :, None] * gain[:, None, :]
        m = own - mixed - mixed.swapaxes(1, 2) + square + closed.swapaxes(1, 2) @ m @ closed
    rows, columns = np.triu_indices(3)
    return gains, m[:, rows, columns]


def sweep(gains: np.ndarray, inverse: np.ndarray, h: float, q: np.ndarray) -> np.ndarray:
    """The states and jerks that forces ``[batch, columns, 4, samples]`` ask for, in their shape.

    ``inverse [batch, 3, 3]`` is that of the last ``M``.
    """
    step, b = _dynamics(h)
    x, p = np.zeros(q.shape), q[..., :3, -1]
    for k in range(q.shape[-1] - 2, -1, -1):
        pull = q[..., 3, k] + p @ b
        x[..., 3, k] = pull * gains[:, None, 3, k]
        p = q[..., :3, k] + p @ step - gains[:, None, :3, k] * pull[..., None]
    s = (inverse[:, None] @ p[..., None])[..., 0]
    for k in range(q.shape[-1] - 1):
        x[..., 3, k] -= (gains[:, None, :3, k] * s).sum(-1)
        x[..., :3, k] = s
        s = s @ step.T + x[..., 3, k, None] * b
    x[..., :3, -1] = s
    return x
