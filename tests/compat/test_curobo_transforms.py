"""cuRobo's out buffers below transforms of torch.func and in compiled code: filled, or refused."""

import pytest
import torch
from torch.func import grad, hessian, jacrev, jvp, vmap

from pullback.compat import curobo
from pullback.errors import ArgumentError, UnsupportedError

START, RATE = torch.zeros(1, 2), torch.tensor([4.0])
KERNELS = [curobo.CliqueTensorStepKernel, curobo.AccelerationTensorStepKernel]


def cost(kernel):
    def run(u, out):
        motion = kernel.apply(u, START, START, START, out, None, None, None, RATE, None)
        return motion[1].square().sum()

    return run


@pytest.fixture
def u():
    return torch.cos(torch.arange(12.0)).view(1, 6, 2)


TRANSFORMS = {
    "grad": grad,
    "jacrev": jacrev,
    "hessian": hessian,
    "jvp": lambda f: lambda u, *out: jvp(lambda u: f(u, *out), (u,), (u,)),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_derivatives_fill_what_they_are_given(kernel, transform, u):
    if transform == "jvp":
        transformed = lambda u, out: jvp(cost(kernel), (u, out), (u, out))  # noqa: E731  # one line
    else:
        transformed = TRANSFORMS[transform](cost(kernel))
    out, right = torch.zeros_like(u), torch.zeros_like(u)
    cost(kernel)(u, right)
    found = transformed(u, out)
    assert torch.equal(out, right)
    torch.testing.assert_close(found, TRANSFORMS[transform](cost(kernel))(u, None))


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_derivatives_fill_nothing_else(transform, u):
    out = torch.zeros_like(u)
    with pytest.raises(UnsupportedError, match="out_position is not an argument"):
        TRANSFORMS[transform](lambda u: cost(KERNELS[0])(u, out))(u)
    assert not out.any()


@pytest.mark.parametrize("transform", [lambda f: f, grad])
def test_each_item_of_a_batch_has_a_buffer(transform, u):
    f, batch = transform(cost(KERNELS[0])), torch.stack([u, 2 * u])
    out, right = torch.zeros_like(batch), torch.zeros_like(batch)
    for item, buffer in zip(batch, right, strict=True):
        cost(KERNELS[0])(item, buffer)
    vmap(f)(batch, out)
    assert torch.equal(out, right)
    out = torch.zeros_like(u)
    with pytest.raises(UnsupportedError, match="out_position is not an argument"):
        vmap(f, in_dims=(0, None))(batch, out)
    assert not out.any()


def step(u, out):
    state = torch.zeros(1, 6)
    return curobo.tensor_step_acc(state, u, out, None, 2, torch.eye(6)).square().sum()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("function", [*map(cost, KERNELS), step])
def test_compiled_code_fills_outside_of_its_graphs(function, u):
    width = 6 if function is step else 2
    out, right = torch.zeros(1, 6, width), torch.zeros(1, 6, width)
    torch.testing.assert_close(torch.compile(function, backend="eager")(u, out), function(u, right))
    assert torch.equal(out, right)
    torch._dynamo.reset()  # what is compiled already is not asked for one graph
    with pytest.raises(torch._dynamo.exc.Unsupported, match="filled outside of graphs: pass None"):
        torch.compile(function, backend="eager", fullgraph=True)(u, out)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("function", [*map(cost, KERNELS), step])
def test_compiled_code_refuses_what_shares_memory(function):
    pool = torch.ones(36)
    u, out = pool[:12].view(1, 6, 2), pool[: 36 if function is step else 12].view(1, 6, -1)
    with pytest.raises(ArgumentError, match="shares memory"):
        torch.compile(function, backend="eager")(u, out)
    assert pool.eq(1).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kernel", KERNELS)
def test_compiled_code_without_buffers_is_one_graph(kernel, u):
    def run(u):
        return cost(kernel)(u, None)

    for f in (run, grad(run), hessian(run)):
        compiled = torch.compile(f, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(u), f(u))
