"""Gradients of every order and mode over one table: scheme, boundary, horizon, kind of dt."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pullback.trajectory import Motion, State, differentiate, hold, integrate, rest

F64 = {"dtype": torch.float64}
KINDS = ("scalar", "steps", "trajectories")
BOUNDARIES = ("free", "start", "both")


def parts(motion):
    return motion.position, motion.velocity, motion.acceleration, motion.jerk


def steps_of(kind, count):
    shape = {"scalar": (), "steps": (count,), "trajectories": (2, count)}[kind]
    return (0.6 + 0.4 * torch.rand(shape, **F64)).requires_grad_()


def differentiator(scheme, boundary):
    def run(x, q, v, dt):
        start, goal = {
            "free": (None, None),
            "start": (State(q, v, v * 0.5), None),
            "both": (State(velocity=v), State(q, v)),
        }[boundary]
        return parts(differentiate(x, dt, start=start, goal=goal, scheme=scheme))

    return run


def arguments(kind, horizon):
    return (
        torch.randn(2, horizon, 1, **F64, requires_grad=True),
        torch.randn(1, **F64, requires_grad=True),
        torch.randn(2, 1, **F64, requires_grad=True),
        steps_of(kind, horizon - 1),
    )


TABLE = list(itertools.product(("central", "backward"), BOUNDARIES, KINDS))


@pytest.mark.parametrize(("scheme", "boundary", "kind"), TABLE)
def test_gradients_at_every_horizon(scheme, boundary, kind):
    torch.manual_seed(1)
    run = differentiator(scheme, boundary)
    for horizon in range(5 if scheme == "central" else 4, 13):
        used = arguments(kind, horizon)
        # fast_mode contracts with random vectors; the shortest has its whole Jacobian taken.
        fast = horizon > 5 or kind != "scalar"
        assert gradcheck(run, used, fast_mode=fast)
        if kind == "scalar" or horizon in (4, 5, 6, 9, 12):
            assert gradgradcheck(run, used, fast_mode=True)


@pytest.mark.parametrize(("scheme", "boundary", "kind"), TABLE)
def test_forward_mode(scheme, boundary, kind):
    torch.manual_seed(2)
    run = differentiator(scheme, boundary)
    assert gradcheck(run, arguments(kind, 7), check_forward_ad=True, check_backward_ad=False)


@pytest.mark.parametrize(("scheme", "boundary", "kind"), TABLE)
def test_the_adjoint_is_the_transpose(scheme, boundary, kind):
    torch.manual_seed(3)
    run = differentiator(scheme, boundary)
    for horizon in (5, 8, 33):
        x, q, v, dt = arguments(kind, horizon)
        outputs = run(x, q, v, dt.detach())
        weights = [torch.randn_like(output) for output in outputs]
        products = [(o * w).sum() for o, w in zip(outputs, weights, strict=False)]
        left = sum(products)
        grads = torch.autograd.grad(left, (x, q, v), allow_unused=True)
        right = sum((g * a).sum() for g, a in zip(grads, (x, q, v), strict=False) if g is not None)
        scale = sum((o * w).abs().sum() for o, w in zip(outputs, weights, strict=False))
        assert abs(left - right) <= 1e-13 * scale


@pytest.mark.parametrize("order", ["velocity", "acceleration", "jerk"])
@pytest.mark.parametrize("method", ["exact", "semi_implicit_euler", "euler"])
@pytest.mark.parametrize("kind", KINDS)
def test_integrate(order, method, kind):
    torch.manual_seed(4)
    level = ("velocity", "acceleration", "jerk").index(order) + 1

    def run(u, q, dt):
        start = State(*(q * (n + 1) for n in range(level)))
        return parts(integrate(u, dt, start=start, order=order, method=method))

    for steps in (1, 4):
        used = (
            torch.randn(2, steps, 1, **F64, requires_grad=True),
            torch.randn(2, 1, **F64, requires_grad=True),
            steps_of(kind, steps),
        )
        assert gradcheck(run, used, fast_mode=True)
        assert gradgradcheck(run, used, fast_mode=True)
    assert gradcheck(run, used, check_forward_ad=True, check_backward_ad=False)
    outputs = run(*used)
    weights = [torch.randn_like(output) for output in outputs]
    left = sum((o * w).sum() for o, w in zip(outputs, weights, strict=False))
    grads = torch.autograd.grad(left, used[:2])
    right = sum((g * a).sum() for g, a in zip(grads, used[:2], strict=False))
    assert abs(left - right) <= 1e-13 * sum(
        (o * w).abs().sum() for o, w in zip(outputs, weights, strict=False)
    )


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


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["number", "scalar", "steps", "trajectories"])
def test_compiled_whole(call, kind):
    torch._dynamo.reset()
    x = torch.randn(2, 7, 2, **F64, requires_grad=True)
    count = 6 if call is along else 7
    dt = 0.5 if kind == "number" else steps_of(kind, count).detach()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    got, want = compiled(x, dt), call(x, dt)
    torch.testing.assert_close(got, want)
    weight = torch.randn_like(want)
    [a] = torch.autograd.grad((got * weight).sum(), x)
    [b] = torch.autograd.grad((want * weight).sum(), x)
    torch.testing.assert_close(a, b)


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
