"""Random programs within limits beside Clarabel, an interior-point solver of others.

Feasible, infeasible and degenerate ones: limits far below what the motion needs, a little above the
least that it can do with, and exactly at what it reaches; rows of several kinds beside each other.
"""

import numpy as np
import pytest
from scipy import sparse
from tests.fuzzing import examples
from tests.trajectory.states.test_states import BATCH, FEW, dense, program

from pullback.trajectory.kernels.states._program import meet
from pullback.trajectory.kernels.states._search import bound, search

clarabel = pytest.importorskip("clarabel")

KINDS = ("velocity", "acceleration", "jerk", "position", "end velocity")
# How near to the edge of what can be kept neither of two solvers is asked, as a part of the limits.
EDGE = 1e-5


def settings():
    found = clarabel.DefaultSettings()
    found.verbose = False
    found.tol_gap_abs = found.tol_gap_rel = found.tol_feas = 1e-11
    return found


def least(asked, level, item):
    """The least motion by Clarabel: its status, its cost, and that of moving a row by its limit.

    In the directions that keep the conditions, and in units in which the cost is the length: as
    states and jerks, what is asked is conditioned too badly for it.
    """
    metric, conditions, rows = dense(asked, item)
    basis = np.linalg.svd(conditions)[2][FEW:].T
    basis = basis @ np.linalg.inv(np.linalg.cholesky(basis.T @ metric @ basis)).T
    live = asked.scale[..., item] != 0
    sides, own = rows[live] @ basis, level[..., item][live]
    unit = np.abs(sides).max()  # the length of what moves a row by its limit
    both = np.vstack([sides, -sides]) / unit
    solver = clarabel.DefaultSolver(
        sparse.identity(basis.shape[1], format="csc"), np.zeros(basis.shape[1]),
        sparse.csc_matrix(both), np.concatenate([1 - own, 1 + own]),
        [clarabel.NonnegativeConeT(2 * len(own))], settings(),
    )  # fmt: skip
    solution = solver.solve()
    w = np.array(solution.x)
    return str(solution.status), w @ w / unit**2, unit**-2


def drawn(seed):
    """Programs of one kind, some of whose limits are at the edge, and their levels."""
    random = np.random.default_rng(seed)
    kinds = tuple(random.permutation(KINDS)[: random.integers(1, 4)])
    order, samples = int(random.integers(2, 4)), int(random.integers(8, 33))
    tight = float(random.choice([0.3, 0.6, 0.8, 0.95, 0.999]))
    asked, level = program(kinds, order, samples=samples, tight=tight, seed=seed)
    _, high = bound(asked, level, 1e-7)
    # Every second joint a little within what can be kept, the last one exactly on its limit.
    wider = np.where(np.arange(BATCH) % 2, 1.0, high * (1 + 10 ** random.uniform(-4, -1, BATCH)))
    wider[-1] = np.abs(level[..., -1]).max()
    return asked._replace(scale=asked.scale / wider), level / wider


def disagreements(seed):
    """What two solvers find unlike each other; what is at the edge is asked of neither."""
    asked, level = drawn(seed)
    found = search(asked, level)
    low, high = bound(asked, level, 1e-7)
    aims = np.where(found.active != 0, found.active - level, 0.0)[None]
    samples = level.shape[1]
    zeros = np.zeros((1, 4, samples, BATCH)), np.zeros((1, FEW, BATCH))
    (x,), _, _, _ = meet(asked, found.active != 0, aims, *zeros)
    x = np.where(np.isfinite(found.x), found.x, x)
    wrong = []
    for item in range(BATCH):
        if low[item] < 1 + EDGE and high[item] > 1 - EDGE:
            continue
        status, wanted, unit = least(asked, level, item)
        if bool(found.found[item]) != ("Infeasible" not in status):
            wrong.append((seed, item, bool(found.found[item]), status, low[item], high[item]))
        elif found.found[item]:
            got = np.concatenate([x[:3, 0, item], x[3, :-1, item]])
            metric, _, rows = dense(asked, item)
            cost, beyond = got @ metric @ got, np.abs(level[..., item] + rows @ got).max() - 1
            apart = abs(cost - wanted) > 1e-5 * wanted + 1e-7 * unit
            if beyond > 1e-9 or (status == "Solved" and apart):
                wrong.append((seed, item, status, cost, wanted, beyond))
    return wrong


@pytest.mark.breadth
def test_random_programs_equal_those_of_another_solver(request):
    first = (
        0 if examples(1) == 1 else int(request.config.getoption("--hypothesis-seed") or 0) % 2**31
    )
    for seed in range(first, first + examples(4)):
        assert disagreements(seed) == []
