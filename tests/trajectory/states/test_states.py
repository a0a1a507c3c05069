"""The program over states: its recursions, its active rows and its derivatives by dense algebra."""

import itertools

import numpy as np
import pytest
import scipy.optimize
import torch
from tests.fuzzing import examples, spread

from pullback.errors import ArgumentError, UnsupportedError
from pullback.trajectory import Limits, minimum_jerk
from pullback.trajectory.kernels.states import _cpu, _interior, _reference
from pullback.trajectory.kernels.states._dispatch import ROWS, LeastMotion
from pullback.trajectory.kernels.states._interior import SIGN, Point, is_least, linear
from pullback.trajectory.kernels.states._program import Program, System, meet
from pullback.trajectory.kernels.states._search import bound, search

F64 = {"dtype": torch.float64}
KINDS = [("velocity",), ("acceleration",), ("jerk",), ("velocity", "jerk"), ("position",)]
ORDERS = (2, 3)
FEW = 6
BATCH = 8  # a vector of joints


def motions(samples):
    """States and jerks ``[4, samples, variables]`` of the first state and all jerks."""
    h, states = 1 / (samples - 1), np.zeros((4, samples, samples + 2))
    states[range(3), 0, range(3)] = 1
    for k in range(samples - 1):
        states[3, k, 3 + k] = 1
        p, v, a, j = states[:, k]
        states[0, k + 1] = p + h * (v + h / 2 * (a + h / 3 * j))
        states[1, k + 1] = v + h * (a + h / 2 * j)
        states[2, k + 1] = a + h * j
    return states


def cost_of(order, samples):
    h = 1 / (samples - 1)
    return h * np.array([0, 0, 1] if order == 3 else [1, h / 2, h**2 / 3])


def program(kinds, order, *, samples=16, tight=0.8, seed=0, kernels=_cpu):
    """Programs, the levels of their least motions without limits, and dense matrices of them."""
    random, h, batch = np.random.default_rng(seed), 1 / (samples - 1), BATCH
    s = 0.4 * h
    place = np.array([0, 0, samples // 3, samples - 1, samples - 1, samples - 1])
    alpha = np.eye(4)[[0, 1, 0, 0, 1, 2]]
    alpha[2] = 1, s, s**2 / 2, s**3 / 6
    form = np.array([ROWS[kind].form for kind in kinds]) * h ** np.arange(4)
    scale = np.ones((len(kinds), samples, batch))
    scale[[kind in ("velocity", "jerk") for kind in kinds], -1] = 0
    if "position" in kinds:  # given at both ends
        scale[kinds.index("position"), [0, -1]] = 0
    given = alpha, place, cost_of(order, samples)
    alpha, place, cost = (np.repeat(part[..., None], batch, -1) for part in given)
    plain = Program(scale, form, alpha, place, cost, order, kernels)
    right = np.zeros((1, FEW, batch))
    right[0, [2, 3]] = random.normal(size=(2, batch))
    nothing = np.zeros((1, 4, samples, batch)), np.zeros((1, *scale.shape))
    _, _, _, (rows,) = meet(plain, scale < 0, nothing[1], nothing[0], right)
    scale = scale / (tight * np.abs(rows).max(1, keepdims=True))
    return plain._replace(scale=scale), scale * rows


def dense(asked, item):
    """``P``, ``A`` and ``G`` of the first state and the jerks."""
    samples = asked.scale.shape[1]
    states = motions(samples)
    _, _, a, j = (part[:-1] for part in states)
    aa, au, uu = asked.cost[:, item]
    metric = aa * a.T @ a + au * (a.T @ j + j.T @ a) + uu * j.T @ j
    at = states[:, asked.place[:, item]]
    conditions = np.einsum("fd,dfn->fn", asked.alpha[..., item], at)
    rows = asked.scale[..., item, None] * np.einsum("cd,dkn->ckn", asked.form, states)
    return metric, conditions, rows


@pytest.mark.parametrize("order", ORDERS)
def test_both_recursions_solve_the_dense_system(order):
    for kernels in (_reference, _cpu):
        asked, _ = program(("velocity", "jerk"), order, kernels=kernels)
        random = np.random.default_rng(1)
        stiff, q = random.uniform(size=asked.scale.shape), random.normal(size=(1, 4, 16, BATCH))
        q[:, 3, -1] = 0
        gap, force = random.normal(size=(1, FEW, BATCH)), random.normal(size=(1, 2, 16, BATCH))
        (x,), (y,), (reached,) = System(asked, stiff).solve(q.copy(), force, 0 * gap, gap)
        for item in range(BATCH):
            metric, conditions, rows = dense(asked, item)
            held = np.einsum("ckm,ck,ckn->mn", rows, stiff[..., item], rows)
            saddle = np.block([[metric + held, conditions.T], [conditions, np.zeros((FEW, FEW))]])
            pull = np.einsum("dkn,dk->n", motions(16), q[0, ..., item])
            pull += np.einsum("ckn,ck->n", rows, force[0, ..., item])
            wanted = np.linalg.solve(saddle, np.concatenate([pull, gap[0, :, item]]))
            found = np.concatenate([x[:3, 0, item], x[3, :-1, item]])
            np.testing.assert_allclose(found, wanted[:-FEW], atol=1e-8 * np.abs(wanted).max())
            np.testing.assert_allclose(y[:, item], wanted[-FEW:], rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(
                reached[..., item], rows @ found, atol=1e-8 * np.abs(wanted).max()
            )


@pytest.mark.parametrize(
    ("kinds", "order", "tight"), spread(list(itertools.product(KINDS, ORDERS, (0.95, 0.8))), 3)
)
def test_least_squares_find_the_same(kinds, order, tight):
    """Source: Lawson and Hanson, Solving Least Squares Problems, chapter 23."""
    asked, level = program(kinds, order, tight=tight)
    found = search(asked, level)
    aims = np.where(found.active != 0, found.active - level, 0.0)[None]
    zeros = np.zeros((1, 4, 16, BATCH)), np.zeros((1, FEW, BATCH))
    (x,), _, _, _ = meet(asked, found.active != 0, aims, *zeros)
    for item in range(3):
        metric, conditions, rows = dense(asked, item)
        basis = np.linalg.svd(conditions)[2][FEW:].T
        basis = basis @ np.linalg.inv(np.linalg.cholesky(basis.T @ metric @ basis)).T
        live = asked.scale[..., item] != 0
        sides, own = rows[live] @ basis, level[..., item][live]
        stacked = np.vstack([np.hstack([-sides.T, sides.T]), np.concatenate([own - 1, -own - 1])])
        pushes, distance = scipy.optimize.nnls(stacked, np.eye(len(stacked))[-1], maxiter=10_000)
        assert bool(found.found[item]) == (distance > 1e-6)
        if found.found[item]:
            missed = stacked @ pushes - np.eye(len(stacked))[-1]
            wanted = basis @ (-missed[:-1] / missed[-1])
            got = np.concatenate([x[:3, 0, item], x[3, :-1, item]])
            np.testing.assert_allclose(got, wanted, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("kinds", KINDS)
def test_bounds_hold_the_answer_of_a_linear_program(kinds):
    for seed in range(examples(1)):
        asked, level = program(kinds, 3, tight=0.6, seed=seed)
        low, high = bound(asked, level, 1e-4)
        decided = bound(asked, level, None)
        kept = search(asked, level).found
        for item in range(4):
            _, conditions, rows = dense(asked, item)
            live = asked.scale[..., item] != 0
            sides, own = rows[live], level[..., item][live]
            ones = -np.ones((len(own), 1))
            peak = scipy.optimize.linprog(
                np.eye(sides.shape[1] + 1)[-1],
                A_ub=np.block([[sides, ones], [-sides, ones]]),
                b_ub=np.concatenate([-own, own]),
                A_eq=np.pad(conditions, ((0, 0), (0, 1))),
                b_eq=np.zeros(FEW),
                bounds=(None, None),
            ).fun
            assert low[item] <= peak * (1 + 1e-6)
            assert peak <= high[item] * (1 + 1e-6)
            # Positions are moved by a jerk as the cube of the step: bounds on them are wider.
            if abs(peak - 1) > (0.02 if "position" in kinds else 1e-3):
                assert kept[item] == (peak < 1)
                assert (decided[1][item] < 1) == (peak < 1)
                assert (decided[0][item] > 1) == (peak > 1)


def test_what_is_not_a_number_or_cannot_be_kept_harms_no_other():
    asked, level = program(("velocity",), 3, tight=0.9)
    alone = search(asked, level)
    scale = asked.scale.copy()
    scale[..., 1] *= 50
    wrong = level * scale / np.where(asked.scale == 0, 1, asked.scale)
    wrong[0, 3, 3] = np.nan
    mixed = search(asked._replace(scale=scale), wrong)
    assert mixed.found.tolist() == [True, False, True, False] + [True] * 4
    np.testing.assert_array_equal(mixed.active[..., [0, 2]], alone.active[..., [0, 2]])


@pytest.mark.parametrize("order", ORDERS)
def test_a_motion_is_called_least_only_where_no_other_saves_a_millionth(order):
    asked, level = program(("velocity", "jerk"), order, tight=0.9)
    sign = search(asked, level).active
    zeros, aims = np.zeros((1, 4, 16, BATCH)), np.where(sign, sign - level, 0)[None]
    (x,), (y,), (force,), (rows,) = meet(asked, sign != 0, aims, zeros, np.zeros((1, FEW, BATCH)))
    push = (SIGN * force).clip(0)
    least = Point(x, y, rows, push, push)
    assert is_least(asked, level, least).all()
    assert not is_least(asked, level, least._replace(push=0 * push)).any()
    assert not is_least(asked, level, least._replace(x=0 * x)).any()  # beyond its limits
    other = linear(asked, level, 1e-6)[1].x  # within them, at another cost
    cost = (asked.pull_cost(x[None])[0] * x).sum((0, 1))
    for part in 10.0 ** np.arange(-5, 0):
        mixed = x + part * (other - x)
        more = (asked.pull_cost(mixed[None])[0] * mixed).sum((0, 1)) - cost
        called = is_least(asked, level, least._replace(x=mixed))
        assert not called[more > 1e-6 * (cost + 2)].any()
        assert called[more < 1e-9 * cost].all()
    assert not called.any()


def test_what_is_not_proven_least_is_refused(monkeypatch):
    monkeypatch.setattr(_interior, "_SAVED", -1.0)
    with pytest.raises(ArgumentError, match="the least motion within it was not found"):
        minimum_jerk(torch.tensor([[0.0], [1.0]]), 1.0, limits=Limits(velocity=1.5))


def least_motion(kink=False):
    """A function of alpha, q, b and target, its inputs, and what it is given beside them."""
    generator = torch.Generator().manual_seed(0)
    samples, few, kinds = 8, 4, ("velocity", "jerk")
    place = torch.tensor([0, 0, 3, 7])
    alpha = torch.eye(4, **F64)[[0, 1, 0, 0]] + 0.1 * torch.rand(few, 4, generator=generator, **F64)
    active = torch.zeros(2, samples, dtype=torch.int8)
    active[0, 4], active[1, 1] = 1, -1

    def draw(*shape):
        return torch.randn(*shape, generator=generator, **F64).requires_grad_()

    inputs = (alpha.requires_grad_(), draw(2, 4, samples), draw(2, few), draw(2, 2, samples))
    mask = torch.ones(4, samples, **F64)
    mask[3, -1] = 0
    rest = (place, torch.ones(2, samples, **F64), active, torch.tensor(kink), 3, ",".join(kinds))

    def run(alpha, q, b, target):
        return LeastMotion.apply(alpha, q * mask, b, target, *rest)

    return run, inputs


def test_every_derivative():
    run, inputs = least_motion()
    units = [part.detach().abs().max() for part in run(*inputs)]

    def scaled(*given):
        return tuple(part / unit for part, unit in zip(run(*given), units, strict=True))

    options = {"atol": 1e-5, "rtol": 1e-4, "fast_mode": True}
    assert torch.autograd.gradcheck(scaled, inputs, check_forward_ad=True, **options)
    assert torch.autograd.gradgradcheck(scaled, inputs, **options)


def test_vmap_equals_a_batch():
    run, inputs = least_motion()
    alpha, q, b, target = (part.detach() for part in inputs)
    many = torch.stack([b, 2 * b, -b])
    found = torch.func.vmap(run, (None, None, 0, None))(alpha, q, many, target)
    for number, one in enumerate(many):
        for part, wanted in zip(found, run(alpha, q, one, target), strict=True):
            torch.testing.assert_close(part[number], wanted, rtol=1e-9, atol=1e-9)


def test_a_kink_has_no_second_derivative():
    run, inputs = least_motion(kink=True)
    x = run(*inputs)[0]
    (first,) = torch.autograd.grad(x.square().sum(), inputs[2], create_graph=True)
    with pytest.raises(UnsupportedError, match="a limit is just met"):
        torch.autograd.grad(first.sum(), inputs[2])
