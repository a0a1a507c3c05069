"""Gradients of every order and mode over one table: scheme, boundary, kind of dt, horizon."""

import itertools

import pytest
import torch
from tests.fuzzing import spread
from torch.autograd import gradcheck, gradgradcheck

from pullback.trajectory import (
    Limits,
    Motion,
    State,
    differentiate,
    hold,
    integrate,
    minimum_jerk,
    rest,
)

pytestmark = pytest.mark.sampled(4)

F64 = {"dtype": torch.float64}
SCHEMES = {"backward": 4, "central": 5}
KINDS = ("number", "scalar", "steps", "trajectories")
BOUNDARIES = ("free", "rest", "hold", "start", "goal", "both")
# In fast mode torch contracts the Jacobian with one random vector on each side. All arguments are
# one vector here and all results another, so that each entry takes part; with these tolerances a
# relative error of 1e-6 in the product fails, where torch's own would let 1e-3 pass.
FAST = {"fast_mode": True, "check_undefined_grad": False, "rtol": 1e-6, "atol": 1e-8}


def parts(motion):
    return motion.position, motion.velocity, motion.acceleration, motion.jerk


def as_vectors(call, arguments):
    """The call as a function of one vector that gives one, and the vector."""
    sizes = [argument.numel() for argument in arguments]

    def run(vector):
        pieces = vector.split(sizes)
        shaped = [a.view(b.shape) for a, b in zip(pieces, arguments, strict=True)]
        return torch.cat([part.flatten() for part in call(*shaped)])

    vector = torch.cat([argument.detach().flatten() for argument in arguments])
    return run, vector.requires_grad_()


def check_every_order(call, arguments, *, mixed=True):
    run, vector = as_vectors(call, arguments)
    assert gradcheck(run, vector, check_forward_ad=True, **FAST)
    assert gradgradcheck(run, vector, check_fwd_over_rev=mixed, **FAST)


def check_the_transpose(run, arguments):
    """The dot product: <w, J a> is <J' w, a>, for a map that is linear in the arguments."""
    outputs = run(*arguments)
    weights = [torch.randn_like(output) for output in outputs]
    products = [o * w for o, w in zip(outputs, weights, strict=True)]
    left = sum(product.sum() for product in products)
    grads = torch.autograd.grad(left, arguments, allow_unused=True)
    pairs = zip(grads, arguments, strict=True)
    right = sum((g * a).sum() for g, a in pairs if g is not None)
    assert abs(left - right) <= 1e-13 * sum(product.abs().sum() for product in products)


def steps_of(kind, count, batch=2):
    """Differentiable steps of a kind, none for a number: a list to append to the arguments."""
    if kind == "number":
        return []
    shape = {"scalar": (), "steps": (count,), "trajectories": (batch, count)}[kind]
    return [(0.6 + 0.4 * torch.rand(shape, **F64)).requires_grad_()]


def differentiator(scheme, boundary):
    """From positions, two boundary values and perhaps dt to all four parts of the motion."""

    def run(x, q, v, dt=0.7):
        start, goal = {
            "free": (None, None),
            "rest": (rest, rest),
            "hold": (hold, hold),
            "start": (State(q, v, v * 0.5), None),
            "goal": (None, State(q, v, v * 0.5, v * v)),
            "both": (State(velocity=v), State(q, v)),
        }[boundary]
        return parts(differentiate(x, dt, start=start, goal=goal, scheme=scheme))

    return run


def arguments(kind, horizon, batch=2):
    return (
        torch.randn(batch, horizon, 1, **F64, requires_grad=True),
        torch.randn(1, **F64, requires_grad=True),
        torch.randn(batch, 1, **F64, requires_grad=True),
        *steps_of(kind, horizon - 1, batch),
    )


TABLE = list(itertools.product(SCHEMES, BOUNDARIES, KINDS))
HORIZONS = spread([(*row, horizon) for row in TABLE for horizon in range(SCHEMES[row[0]], 13)], 13)
# Each scheme with each kind, the boundaries taking turns: whole Jacobians, undefined gradients.
SPREAD = [
    (scheme, BOUNDARIES[(offset + index) % 6], kind)
    for offset, scheme in enumerate(SCHEMES)
    for index, kind in enumerate(KINDS)
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("scheme", "boundary", "kind", "horizon"), HORIZONS)
def test_every_order(scheme, boundary, kind, horizon):
    torch.manual_seed(horizon)
    batch = 1 + horizon % 2
    # Forward over reverse is half of the time where each step has weights of its own.
    mixed = kind in ("number", "scalar") or horizon == 6
    used = arguments(kind, horizon, batch)
    check_every_order(differentiator(scheme, boundary), used, mixed=mixed)


@pytest.mark.parametrize(("scheme", "boundary", "kind"), spread(SPREAD, 3))
def test_whole_jacobians(scheme, boundary, kind):
    torch.manual_seed(1)
    run = differentiator(scheme, boundary)
    used = arguments(kind, SCHEMES[scheme], 1)
    assert gradcheck(run, used, check_forward_ad=True)
    if kind in ("number", "scalar"):
        assert gradgradcheck(run, used)


@pytest.mark.parametrize(("scheme", "boundary", "kind"), TABLE)
def test_the_adjoint_is_the_transpose(scheme, boundary, kind):
    torch.manual_seed(3)
    run = differentiator(scheme, boundary.replace("goal", "both"))
    for horizon in (5, 8, 33):
        x, q, v, *dt = (argument.detach() for argument in arguments(kind, horizon))
        inputs = (x.requires_grad_(), q.requires_grad_(), v.requires_grad_())
        check_the_transpose(lambda x, q, v, dt=dt: run(x, q, v, *dt), inputs)


ORDERS = ("velocity", "acceleration", "jerk")
METHODS = ("exact", "semi_implicit_euler", "euler")


@pytest.mark.parametrize(
    ("order", "method", "kind"), spread(list(itertools.product(ORDERS, METHODS, KINDS)), 5)
)
def test_integrate(order, method, kind):
    torch.manual_seed(4)
    level = ORDERS.index(order) + 1

    def run(u, q, dt=0.7):
        start = State(*(q * (n + 1) for n in range(level)))
        return parts(integrate(u, dt, start=start, order=order, method=method))

    def drawn(steps):
        control = torch.randn(2, steps, 1, **F64, requires_grad=True)
        return control, torch.randn(2, 1, **F64, requires_grad=True), *steps_of(kind, steps)

    for steps in (1, *spread([2, 3, 4], 2), 7):
        check_every_order(run, drawn(steps), mixed=steps == 4)
    assert gradcheck(run, drawn(2), check_forward_ad=True)
    control, start, *dt = drawn(4)
    fixed = [step.detach() for step in dt]
    check_the_transpose(lambda u, q: run(u, q, *fixed), (control, start))


def along(x, dt):
    return differentiate(x, dt, start=rest).jerk


def driven(u, dt):
    return integrate(u, dt, start=State(0.0, 0.0)).position


CALLS = [along, driven]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("in_dims", [(0, None), (2, None), (0, 0), (None, 0)])
@pytest.mark.parametrize("kind", ["scalar", "steps"])
def test_vmap(call, in_dims, kind):
    batched = {"scalar": (4,), "steps": (4, 5)}[kind]
    count = 6 if call is along else 5
    x = torch.randn(4, count, 2, **F64) if in_dims[0] is not None else torch.randn(count, 2, **F64)
    dt = 0.5 + torch.rand(batched if in_dims[1] == 0 else batched[1:], **F64)
    want = torch.stack(
        [
            call(x if in_dims[0] is None else x[i], dt[i] if in_dims[1] == 0 else dt)
            for i in range(4)
        ]
    )
    moved = x.movedim(0, in_dims[0]) if in_dims[0] is not None else x
    got = torch.func.vmap(call, in_dims)(moved, dt)
    torch.testing.assert_close(got, want)

    def loss(x, dt):
        return call(x, dt).square().sum()

    per = torch.func.vmap(torch.func.grad(loss, (0, 1)), in_dims)(moved, dt)
    for i in range(4):
        one = torch.func.grad(loss, (0, 1))(
            x if in_dims[0] is None else x[i], dt[i] if in_dims[1] == 0 else dt
        )
        torch.testing.assert_close(per[0][i], one[0])
        torch.testing.assert_close(per[1][i], one[1])


@pytest.mark.parametrize("call", CALLS)
def test_torch_func(call):
    x, dt = torch.randn(6, 1, **F64), torch.tensor(0.7, **F64)
    for argument in (0, 1):
        forward = torch.func.jacfwd(call, argument)(x, dt)
        reverse = torch.func.jacrev(call, argument)(x, dt)
        torch.testing.assert_close(forward, reverse)

    def loss(dt):
        return call(x, dt).square().sum()

    twice = torch.func.jacrev(torch.func.grad(loss))(dt)
    torch.testing.assert_close(torch.func.hessian(loss)(dt), twice)


@pytest.mark.parametrize(("call", "kind"), spread(list(itertools.product(CALLS, KINDS)), 3))
def test_compiled_whole(call, kind):
    torch._dynamo.reset()
    x = torch.randn(2, 7, 2, **F64, requires_grad=True)
    count = 6 if call is along else 7
    dt = steps_of(kind, count)[0].detach() if kind != "number" else 0.5
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    got, want = compiled(x, dt), call(x, dt)
    torch.testing.assert_close(got, want)
    weight = torch.randn_like(want)
    [a] = torch.autograd.grad((got * weight).sum(), x)
    [b] = torch.autograd.grad((want * weight).sum(), x)
    torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_compiled_gives_a_motion():
    torch._dynamo.reset()
    x = torch.randn(2, 7, 2, **F64, requires_grad=True)
    dt = torch.tensor(0.5, **F64, requires_grad=True)
    motion = torch.compile(
        lambda x, dt: differentiate(x, dt, goal=hold), fullgraph=True, backend="aot_eager"
    )(x, dt)
    assert isinstance(motion, Motion)
    got = torch.autograd.grad(motion.jerk.square().sum(), (x, dt))
    want = torch.autograd.grad(differentiate(x, dt, goal=hold).jerk.square().sum(), (x, dt))
    torch.testing.assert_close(got, want)


def test_compiled_where_sizes_and_numbers_are_symbols():
    torch._dynamo.reset()
    x = torch.randn(2, 9, 3, **F64)

    def both(x):
        start = State(position=0.0, velocity=0.0)
        return differentiate(x, 0.1).jerk, integrate(x, 0.1, start=start).position

    compiled = torch.compile(both, fullgraph=True, dynamic=True, backend="eager")
    torch.testing.assert_close(compiled(x), both(x))


@pytest.mark.slow
def test_compiled_where_a_number_is_as_large_as_a_symbol():
    torch._dynamo.reset()
    x = torch.randn(2, 9, 3, **F64)

    def both(x):
        one = torch.ones(3, **F64)
        start, steps = State(position=one, velocity=one), torch.full((2, 8), 0.1, **F64)
        limits = Limits(velocity=100 * one)
        return (
            differentiate(x, steps, goal=State(velocity=one)).jerk,
            integrate(x, 0.1, start=start).position,
            minimum_jerk(x[:, :3], 1.0, goal=State(velocity=one), samples=9).velocity,
            minimum_jerk(x[:, :3], 1.0, limits=limits, samples=9).velocity,
        )

    compiled = torch.compile(both, fullgraph=True, dynamic=True, backend="eager")
    torch.testing.assert_close(compiled(x), both(x))


def test_an_unneeded_gradient_is_not_computed():
    x = torch.randn(2, 7, 2, **F64)
    v = torch.randn(2, **F64, requires_grad=True)
    dt = torch.tensor(0.5, **F64, requires_grad=True)
    jerk = differentiate(x, dt, start=State(velocity=v)).jerk.sum()
    both = torch.autograd.grad(jerk, (v, dt), retain_graph=True)
    for index, one in enumerate((v, dt)):
        torch.testing.assert_close(
            torch.autograd.grad(jerk, one, retain_graph=True)[0], both[index]
        )


@pytest.mark.parametrize("kind", ["velocity", "acceleration", "jerk"])
def test_limits_pull_back_what_they_push_forward(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        through = torch.randn(4, 1, dtype=torch.float64, generator=generator)
        times = torch.tensor([0.0, 0.3, 0.6, 1.0], dtype=torch.float64)
        limit = getattr(minimum_jerk(through, times, samples=40), kind).abs().max() * 0.9

        def run(
            through: torch.Tensor, limit: torch.Tensor, times: torch.Tensor = times
        ) -> torch.Tensor:
            limits = Limits(**{kind: limit})
            return minimum_jerk(through, times, samples=40, limits=limits).jerk

        direction = torch.randn_like(through), limit
        motion, pull = torch.func.vjp(run, through, limit)
        push = torch.func.jvp(run, (through, limit), direction)[1]
        cotangent = torch.randn(motion.shape, dtype=torch.float64, generator=generator)
        pulled = sum((a * b).sum() for a, b in zip(pull(cotangent), direction, strict=True))
        size = float(push.norm() * cotangent.norm())
        assert (
            abs(float((push * cotangent).sum() - pulled)) <= 5e-13 * size
        )  # of rows that are met by stiff springs
