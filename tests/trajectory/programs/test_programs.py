"""Motions within limits: optimality by dense algebra, both backends alike, every derivative."""

import itertools

import numpy as np
import pytest
import scipy.optimize
import torch
from tests.fuzzing import examples, spread

from pullback.trajectory.kernels.programs import (
    KeepLimits,
    Problem,
    Unknowns,
    _cpu,
    _reference,
    keep_limits,
)
from pullback.trajectory.kernels.programs._cubic import VELOCITY, position_rows
from pullback.trajectory.kernels.programs._problem import ROWS, gap_of

F64 = {"dtype": torch.float64}
FORMS = {kind: ROWS[kind] for kind in ("velocity", "acceleration", "jerk")}
KINDS = [("velocity",), ("acceleration",), ("jerk",), ("velocity", "jerk"), tuple(FORMS)]
ORDERS = (2, 3)
BACKENDS = (_reference, _cpu)


def dense_rows(kind, samples):
    form = FORMS[kind]
    rows = np.zeros((samples + 3 - len(form), samples + 2))
    for k in range(len(rows)):
        rows[k, k : k + len(form)] = form
    return rows


def dense_metric(order, samples):
    """The integral over each step of the squared jerk, or of the squared linear acceleration."""
    if order == 3:
        jerk = dense_rows("jerk", samples)
        return jerk.T @ jerk
    bend = dense_rows("acceleration", samples)
    first, second = bend[:-1], bend[1:]
    both = first.T @ second
    return (first.T @ first + second.T @ second + (both + both.T) / 2) / 3


def problem(kinds, order, *, samples=24, batch=(3, 2), each=False, tight=0.8, seed=0):
    """Motions through three points, and limits below the peaks of some."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.tensor([0.0, 0.4 * samples, samples - 1.0], **F64)
    few = position_rows(places, samples)
    ends = torch.zeros(2, samples + 2, **F64)
    ends[0, :3], ends[1, -3:] = torch.tensor(VELOCITY), torch.tensor(VELOCITY)
    conditions = torch.cat([few, ends])
    metric = torch.from_numpy(dense_metric(order, samples))
    saddle = torch.zeros(samples + 7, samples + 7, **F64)
    saddle[: samples + 2, : samples + 2] = metric
    saddle[samples + 2 :, : samples + 2] = conditions
    saddle[: samples + 2, samples + 2 :] = conditions.T
    right = torch.zeros(*batch, samples + 7, **F64)
    right[..., samples + 2 : samples + 5] = torch.randn(*batch, 3, generator=generator, **F64)
    plain = torch.linalg.solve(saddle, right.unsqueeze(-1)).squeeze(-1)[..., : samples + 2]
    rows = torch.cat([torch.from_numpy(dense_rows(kind, samples)) for kind in kinds])
    scale = []
    for kind in kinds:
        moved = plain @ torch.from_numpy(dense_rows(kind, samples)).T
        # Each joint is a little tighter than the one before; the last keeps its limits.
        part = tight + 0.4 * torch.arange(batch[-1], **F64) / max(1, batch[-1] - 1)
        limit = moved.abs().amax(-1) * part
        scale.append((1 / limit).unsqueeze(-1).expand(moved.shape))
    scale = torch.cat(scale, -1).clone()
    scale[..., 0] = 0
    level = scale * (plain @ rows.T)
    energy = ((plain @ metric) * plain).sum(-1)
    conditions = conditions.expand(*batch, *conditions.shape) if each else conditions.unsqueeze(0)
    return Problem(level, scale, conditions, energy, order, kinds)


@pytest.mark.parametrize(
    ("kinds", "order", "backend"), spread(list(itertools.product(KINDS, ORDERS, BACKENDS)), 3)
)
def test_the_solution_is_optimal(kinds, order, backend):
    asked = problem(kinds, order, tight=0.8 if len(kinds) == 1 else 0.98)
    now, found = backend.solve_problems(asked)
    assert found.all()
    samples = asked.samples
    metric = dense_metric(order, samples)
    rows = np.concatenate([dense_rows(kind, samples) for kind in kinds])
    few = asked.conditions[0].numpy()
    moved = 0
    for item in itertools.product(range(3), range(2)):
        x, y, slack, push = (part[item].numpy() for part in now)
        scale, level = asked.scale[item].numpy(), asked.level[item].numpy()
        reached = level + scale * (rows @ x)
        np.testing.assert_allclose(few @ x, 0, atol=1e-10)
        assert np.abs(reached).max() <= 1 + 1e-9
        if np.abs(level).max() <= 1:
            assert not x.any()
            continue
        moved += 1
        assert (slack > 0).all()
        assert (push > 0).all()
        np.testing.assert_allclose(slack, [1 - reached, 1 + reached], atol=1e-12)
        # Convex: this stationarity and complementarity are enough for the least of all.
        gap = gap_of(asked, now.push)[item].numpy()
        np.testing.assert_allclose(slack * push, gap, rtol=1e-6)
        force = rows.T @ (scale * (push[0] - push[1]))
        pull = metric @ x / asked.energy[item].numpy() + few.T @ y
        np.testing.assert_allclose(pull, -force, atol=1e-7 * np.abs(force).max())
    assert moved


def least_distance(asked, item):
    """The same problem by non-negative least squares; ``None`` where nothing keeps the limits.

    Source: Lawson and Hanson, Solving Least Squares Problems, chapter 23.
    """
    metric = dense_metric(asked.order, asked.samples)
    rows = np.concatenate([dense_rows(kind, asked.samples) for kind in asked.kinds])
    few = asked.conditions[0].numpy()
    # In the directions that keep the conditions, and in units in which the metric is one.
    basis = np.linalg.svd(few)[2][len(few) :].T
    basis = basis @ np.linalg.inv(np.linalg.cholesky(basis.T @ metric @ basis)).T
    sides = asked.scale[item].numpy()[:, None] * (rows @ basis)
    level = asked.level[item].numpy()
    kept = np.concatenate([-sides, sides]), np.concatenate([level - 1, -level - 1])
    stacked = np.vstack([kept[0].T, kept[1]])
    target = np.eye(len(stacked))[-1]
    pushes, distance = scipy.optimize.nnls(stacked, target, maxiter=10_000)
    missed = stacked @ pushes - target
    return None if distance < 1e-6 else basis @ (-missed[:-1] / missed[-1])


@pytest.mark.parametrize(
    ("kinds", "order", "tight"), spread(list(itertools.product(KINDS, ORDERS, (0.95, 0.7))), 3)
)
def test_least_squares_find_the_same(kinds, order, tight):
    asked = problem(kinds, order, samples=16, batch=(4,), tight=tight)
    now, found = _cpu.solve_problems(asked)
    for item in range(4):
        x = least_distance(asked, item)
        assert bool(found[item]) == (x is not None)
        if x is not None:
            got = now.x[item].numpy()
            np.testing.assert_allclose(got, x, atol=1e-4 * max(np.abs(x).max(), 1e-3))


def least_peak(asked, item):
    """The least part of its limits that a joint can keep to, by linear programming."""
    rows = np.concatenate([dense_rows(kind, asked.samples) for kind in asked.kinds])
    rows = asked.scale[item].numpy()[:, None] * rows
    level, few = asked.level[item].numpy(), asked.conditions[0].numpy()
    peak = -np.ones((len(rows), 1))
    return scipy.optimize.linprog(
        np.eye(asked.samples + 3)[-1],
        A_ub=np.block([[rows, peak], [-rows, peak]]),
        b_ub=np.concatenate([-level, level]),
        A_eq=np.pad(few, ((0, 0), (0, 1))),
        b_eq=np.zeros(len(few)),
        bounds=(None, None),
    ).fun


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("order", ORDERS)
def test_whatever_can_be_kept_is_found(kinds, order):
    # Driven hard: multipliers reach 1e5, where a gap that is the same for all loses the metric.
    for seed in range(examples(2)):
        asked = problem(kinds, order, samples=16, batch=(8,), tight=0.7, seed=seed)
        answers = [backend.solve_problems(asked)[1] for backend in (_reference, _cpu)]
        for item in range(8):
            peak = least_peak(asked, item)
            if abs(peak - 1) > 1e-3:
                assert [bool(found[item]) for found in answers] == [peak < 1] * 2, (seed, item)


SIZES = [(7, (1,)), (24, (3, 2)), (65, (2, 2, 3))]


@pytest.mark.parametrize(
    ("kinds", "order", "each", "size"),
    spread(list(itertools.product(KINDS, ORDERS, (False, True), SIZES)), 7),
)
def test_both_backends_agree(kinds, order, each, size):
    samples, batch = size
    asked = problem(kinds, order, samples=samples, batch=batch, each=each, tight=0.9)
    one, found = _cpu.solve_problems(asked)
    two, wanted = _reference.solve_problems(asked)
    assert torch.equal(found, wanted)
    for name, a, b in zip(Unknowns._fields, one, two, strict=True):
        assert a.shape == b.shape, name
        # Where nothing is found, nothing is promised.
        scale = float(b[found].abs().max()) if found.any() else 1.0
        torch.testing.assert_close(a[found], b[found], rtol=1e-5, atol=1e-9 * scale)


def test_what_cannot_be_kept_is_not_found_and_harms_no_other():
    asked = problem(("velocity",), 3)
    tight = asked.scale.clone()
    tight[1, 0] *= 50
    mixed = asked._replace(
        scale=tight, level=asked.level * tight.nan_to_num() / asked.scale.clamp(1e-300)
    )
    for backend in (_reference, _cpu):
        alone, _ = backend.solve_problems(asked)
        now, found = backend.solve_problems(mixed)
        assert not found[1, 0]
        assert int(found.sum()) == 5
        torch.testing.assert_close(now.x[found], alone.x[found], rtol=0, atol=1e-13)


def test_what_is_not_a_number_is_not_found():
    asked = problem(("velocity",), 3)
    level = asked.level.clone()
    level[0, 0, 3] = float("nan")
    for backend in (_reference, _cpu):
        _, found = backend.solve_problems(asked._replace(level=level))
        assert not found[0, 0]
        assert int(found.sum()) == 5


def test_threads_do_not_change_a_bit():
    asked = problem(("velocity", "jerk"), 3, batch=(8, 7))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one, _ = _cpu.solve_problems(asked)
        torch.set_num_threads(3)
        three, _ = _cpu.solve_problems(asked)
    finally:
        torch.set_num_threads(threads)
    for a, b in zip(one, three, strict=True):
        assert torch.equal(a, b)


def tensors(asked, count=3):
    return tuple(part.detach().clone().requires_grad_() for part in asked[:count])


def applied(asked):
    # In units of what they are at the solution, small and large parts are checked alike.
    units = [part.abs().max() for part in _cpu.solve_problems(asked)[0]]
    kinds = ",".join(asked.kinds)

    def run(level, scale, conditions, energy):
        given = (level, scale, conditions, energy, asked.order, kinds, False)
        *parts, _ = KeepLimits.apply(*given)
        return tuple(part / unit for part, unit in zip(parts, units, strict=True))

    return run


@pytest.mark.parametrize(
    ("each", "kinds"),
    spread(list(itertools.product((False, True), (("velocity",), ("acceleration", "jerk")))), 3),
)
def test_every_derivative(kinds, each):
    asked = problem(kinds, 3, samples=8, batch=(2,), each=each, tight=0.8)
    first = {name: getattr(asked, name)[:1] for name in ("level", "scale", "conditions", "energy")}
    asked = asked._replace(**first)
    run, used = applied(asked), tensors(asked, 4)
    options = {"atol": 1e-6, "fast_mode": True}
    assert torch.autograd.gradcheck(run, used, check_forward_ad=True, **options)
    # A gradient rounds at 1e-11 where rows are stiff, which a smaller step would magnify.
    options = {"eps": 1e-4, "atol": 1e-3, "rtol": 1e-4, "fast_mode": True}
    assert torch.autograd.gradgradcheck(lambda *inputs: run(*inputs)[0], used, **options)


@pytest.mark.parametrize("kinds", KINDS)
def test_the_gradient_is_linear_to_rounding_where_limits_push_hard(kinds):
    asked = problem(kinds, 3, tight=0.8 if len(kinds) == 1 else 0.98)
    used = tensors(asked)
    given = (*used, asked.energy, asked.order, ",".join(kinds), False)
    x, *_, found = KeepLimits.apply(*given)
    assert found.all()
    one, two = torch.randn_like(x), torch.randn_like(x)

    def pull(weight):
        gradients = torch.autograd.grad(x, used, weight, retain_graph=True)
        return torch.cat([gradient.flatten() for gradient in gradients])

    mixed = pull(2.5 * one - 1.5 * two)
    wrong = mixed - (2.5 * pull(one) - 1.5 * pull(two))
    assert wrong.abs().max() <= 1e-11 * mixed.abs().max()


def test_vmap_equals_a_batch():
    asked = problem(("velocity", "acceleration"), 3, batch=(3, 2))

    def run(level, scale, conditions, energy):
        return keep_limits(Problem(level, scale, conditions, energy, 3, asked.kinds))[0]

    tensors = (asked.level, asked.scale, asked.conditions, asked.energy)
    together = run(*tensors)
    torch.testing.assert_close(torch.func.vmap(run, (0, 0, None, 0))(*tensors), together)
    last = torch.func.vmap(run, (1, 1, None, 1), 1)
    alone = (asked.level.unsqueeze(2), asked.scale.unsqueeze(2), asked.conditions)
    torch.testing.assert_close(last(*alone, asked.energy.unsqueeze(2)).squeeze(2), together)


def test_two_forwards_then_two_backwards():
    one, two = problem(("velocity",), 3), problem(("velocity",), 3, seed=1)
    levels = [asked.level.clone().requires_grad_() for asked in (one, two)]
    pairs = zip((one, two), levels, strict=True)
    first, second = (keep_limits(asked._replace(level=level))[0] for asked, level in pairs)
    second.square().sum().backward()
    first.square().sum().backward()
    for asked, level in zip((one, two), levels, strict=True):
        alone = asked.level.clone().requires_grad_()
        keep_limits(asked._replace(level=alone))[0].square().sum().backward()
        assert torch.equal(level.grad, alone.grad)


def test_the_unneeded_is_left_out():
    asked = problem(("velocity",), 3)
    level, scale, conditions = tensors(asked)
    x, _ = keep_limits(asked._replace(level=level, scale=scale, conditions=conditions))
    weight = torch.randn_like(x)
    every = torch.autograd.grad((x * weight).sum(), (level, scale, conditions), retain_graph=True)
    for one, wanted in zip((level, scale, conditions), every, strict=True):
        (got,) = torch.autograd.grad((x * weight).sum(), one, retain_graph=True)
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
