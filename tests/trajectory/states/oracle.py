"""Random programs within limits beside Clarabel, an interior-point solver of others.

Feasible, infeasible and degenerate ones: limits far below what the motion needs, a little above the
least that it can do with, and exactly at what it reaches; rows of several kinds beside each other.

    python -m tests.trajectory.states.oracle --programs 10000 --seed 1
"""

import argparse
import sys
import time
from collections import Counter

import clarabel
import numpy as np
from scipy import sparse
from tests.trajectory.states.test_states import BATCH, FEW, dense, program

from pullback.trajectory.kernels.states._program import meet
from pullback.trajectory.kernels.states._search import bound, search

KINDS = ("velocity", "acceleration", "jerk", "position", "end velocity")
# How near to the edge of what can be kept neither of two solvers is asked, as a part of the limits.
EDGE = 1e-5
# What a cost may be above the least one, and what Clarabel's may, as a part of it.
COST = 1e-6
# To what precision Clarabel is asked: degenerate programs it solves to fewer digits alone.
PRECISIONS = (1e-11, 1e-9, 1e-7)
SURE = ("Solved", "PrimalInfeasible")


def settings(precision):
    found = clarabel.DefaultSettings()
    found.verbose = False
    found.tol_gap_abs = found.tol_gap_rel = found.tol_feas = precision
    return found


def least(asked, level, item):
    """The least motion by Clarabel: its status, precision and cost, and that of a row's limit.

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
    problem = (
        sparse.identity(basis.shape[1], format="csc"), np.zeros(basis.shape[1]),
        sparse.csc_matrix(both), np.concatenate([1 - own, 1 + own]),
        [clarabel.NonnegativeConeT(2 * len(own))],
    )  # fmt: skip
    for precision in PRECISIONS:
        solution = clarabel.DefaultSolver(*problem, settings(precision)).solve()
        if str(solution.status) in SURE:
            break
    w = np.array(solution.x)
    return str(solution.status), precision, w @ w / unit**2, unit**-2


def drawn(seed, widths=None):
    """Programs of one kind, their levels, and which of them are degenerate where kept at all.

    Some limits are at the edge of what can be kept, at ``widths`` as they are known there.
    """
    random = np.random.default_rng(seed)
    kinds = tuple(random.permutation(KINDS)[: random.integers(1, 4)])
    order, samples = int(random.integers(2, 4)), int(random.integers(8, 33))
    tight = float(random.choice([0.3, 0.6, 0.8, 0.95, 0.999]))
    asked, level = program(kinds, order, samples=samples, tight=tight, seed=seed)
    degenerate = np.zeros(BATCH, bool)
    if "acceleration" in kinds and "jerk" in kinds:
        # A limit on the acceleration that the one on the jerk reaches in a whole number of steps:
        # from rest rows of both are met together, of which one is the sum of the others.
        force, push = kinds.index("acceleration"), kinds.index("jerk")
        degenerate[:3] = True
        scale = asked.scale.copy()
        scale[push, :-1, :3] = scale[force, :-1, :3] * random.integers(2, 6, 3)
        level = level * scale / np.where(asked.scale != 0, asked.scale, 1)
        asked = asked._replace(scale=scale)
    high = bound(asked, level, 1e-7)[1] if widths is None else np.array(widths)
    # Every second joint a little within what can be kept, the last one exactly on its limit.
    wider = np.where(np.arange(BATCH) % 2, 1.0, high * (1 + 10 ** random.uniform(-4, -1, BATCH)))
    wider[-1] = np.abs(level[..., -1]).max()
    degenerate[-1] = True
    return asked._replace(scale=asked.scale / wider), level / wider, degenerate


def compare(seed, widths=None):
    """How many programs of each kind were compared, and what two solvers find unlike each other.

    And the most by which a cost is above that of Clarabel, as a part of it, where it has eleven
    digits. What is at the edge is asked of neither, unless the motion without limits keeps them.
    """
    asked, level, degenerate = drawn(seed, widths)
    found = search(asked, level)
    low, high = bound(asked, level, 1e-7)
    aims = np.where(found.active != 0, found.active - level, 0.0)[None]
    samples = level.shape[1]
    zeros = np.zeros((1, 4, samples, BATCH)), np.zeros((1, FEW, BATCH))
    (x,), _, _, _ = meet(asked, found.active != 0, aims, *zeros)
    x = np.where(np.isfinite(found.x), found.x, x)
    counts, wrong, most = Counter(), [], 0.0
    for item in range(BATCH):
        if low[item] < 1 + EDGE and high[item] > 1 - EDGE and high[item] != 1:
            counts["at the edge, asked of neither"] += 1
            continue
        status, precision, wanted, unit = least(asked, level, item)
        if status not in SURE:
            counts["not solved by Clarabel, not compared"] += 1
            continue
        counts[f"to a precision of {precision:g}"] += 1
        counts["compared"] += 1
        kind = "degenerate" if degenerate[item] else "feasible"
        counts[kind if found.found[item] else "infeasible"] += 1
        if bool(found.found[item]) != ("Infeasible" not in status):
            wrong.append((seed, item, bool(found.found[item]), status, low[item], high[item]))
        elif found.found[item]:
            got = np.concatenate([x[:3, 0, item], x[3, :-1, item]])
            metric, _, rows = dense(asked, item)
            cost, beyond = got @ metric @ got, np.abs(level[..., item] + rows @ got).max() - 1
            near = max(COST, 1e3 * precision)
            if precision == PRECISIONS[0]:
                most = max(most, (cost - wanted) / max(wanted, unit))
            if beyond > 1e-9 or abs(cost - wanted) > near * wanted + 1e-7 * unit:
                wrong.append((seed, item, status, cost, wanted, beyond))
    return counts, wrong, most


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1000, help="how many are compared")
    parser.add_argument("--seed", type=int, default=0, help="the first one, of a few programs each")
    options = parser.parse_args()
    started, seed = time.perf_counter(), options.seed
    counts, wrong, most = Counter(), [], 0.0
    while counts["compared"] < options.programs:
        own, more, above = compare(seed)
        counts, seed, most = counts + own, seed + 1, max(most, above)
        wrong += more
        for one in more:
            print("WRONG:", *one, flush=True)
    for kind, count in counts.items():
        print(f"{kind}: {count}")
    print(f"the largest cost is {most:.2g} of it above Clarabel's")
    print(f"{len(wrong)} wrong; seeds {options.seed} to {seed - 1}, ", end="")
    print(f"{time.perf_counter() - started:.0f} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
